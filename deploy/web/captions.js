// The conversation in writing. Words appear as they are spoken; a screen reader hears each line once, when it is final.

export class Captions {
  #list; #announce;
  #lines = new Map(); // segment id -> element
  name = "";

  constructor(list, announce) {
    this.#list = list;
    this.#announce = announce;
  }

  clear(name) {
    this.name = name;
    this.#lines.clear();
    this.#list.replaceChildren();
  }

  /** Shows one more text of a segment; the newest replaces those before it. */
  show({ id, mine, text, final }) {
    text = text.trim();
    const line = this.#lines.get(id);
    if (!text) {
      if (final && line) this.#remove(id, line);
      return;
    }
    const shown = line ?? this.#add(id, mine);
    shown.querySelector("p").textContent = text;
    const news = final && !shown.dataset.final;
    shown.toggleAttribute("data-interim", !final);
    if (news) {
      shown.dataset.final = "";
      if (!mine) this.#announce(`${this.name}: ${text}`);
    }
    this.#follow();
  }

  /** A line that was typed here; it does not come back as a transcript. @returns what to call when it has arrived */
  typed(text) {
    const line = this.#add(null, true);
    line.dataset.interim = "";
    line.querySelector("p").textContent = text;
    this.#follow();
    return () => line.removeAttribute("data-interim");
  }

  /** A remark between the lines, of nobody. */
  note(text) {
    const item = document.createElement("li");
    item.className = "note";
    item.textContent = text;
    this.#list.append(item);
    this.#announce(text);
    this.#follow();
  }

  #add(id, mine) {
    const item = document.createElement("li");
    item.className = mine ? "mine" : "theirs";
    const who = document.createElement("b");
    who.textContent = mine ? "You" : this.name;
    item.append(who, document.createElement("p"));
    this.#list.append(item);
    if (id !== null) this.#lines.set(id, item);
    return item;
  }

  #remove(id, line) {
    line.remove();
    this.#lines.delete(id);
  }

  /** Stays at the newest line, unless the reader has scrolled up. */
  #follow() {
    const box = this.#list.parentElement;
    if (box.scrollHeight - box.scrollTop - box.clientHeight < 160) box.scrollTop = box.scrollHeight;
  }
}
