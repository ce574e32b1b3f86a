// Figures of the call: the server's as they come, the browser's own from WebRTC statistics, once a second.

const HISTORY = 60;

const ROWS = [
  ["seen", "Frames seen", (f) => [f.seen?.toFixed(1), "fps"]],
  ["fps", "Frames made", (f) => [f.fps?.toFixed(1), "fps"]],
  ["chunk", "Chunk", (f) => [f.chunk_ms?.toFixed(0), "ms"], (f) => f.chunk_ms > f.deadline_ms],
  ["turn", "Answer after", (f) => [f.turn_ms?.toFixed(0), "ms"]],
  ["render", "To your eye", (f) => [f.publish_to_render_ms, "ms"]],
  ["late_chunks", "Late chunks", (f) => [f.late_chunks, ""], (f) => f.late_chunks > 0],
  ["jitter", "Jitter", (f) => [f.jitter?.toFixed(0), "ms"]],
  ["freezes", "Freezes", (f) => [f.freezes, ""], (f) => f.freezes > 0],
  ["buffer", "Buffer", (f) => [f.buffer?.toFixed(0), "ms"]],
  ["response", "Response", (f) => [f.response_id, ""]],
];

export class Panel {
  #box; #call; #timer = null;
  #server = {};
  #before = null;
  #seen = [];
  #cells = {};
  #line;

  constructor(box, call) {
    this.#box = box;
    this.#call = call;
    const list = document.createElement("dl");
    for (const [key, label] of ROWS) {
      const row = document.createElement("div");
      row.dataset.figure = key;
      const [term, value] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = label;
      row.append(term, value);
      list.append(row);
      this.#cells[key] = value;
    }
    box.innerHTML = '<svg class="spark" viewBox="0 0 60 30" preserveAspectRatio="none" aria-hidden="true"><path class="goal" d="M0 6H60"/><polyline/></svg>';
    this.#line = box.querySelector("polyline");
    box.append(list);
  }

  get open() { return !this.#box.hidden; }

  toggle(open) {
    this.#box.hidden = !open;
    clearInterval(this.#timer);
    this.#before = null;
    this.#seen = [];
    if (open) {
      this.#timer = setInterval(() => this.#tick(), 1000);
      this.#tick();
    }
  }

  /** Takes the server's figures. */
  take(figures) { this.#server = figures; }

  reset() { this.#server = {}; }

  async #tick() {
    const figures = { ...this.#server, ...(await this.#own()) };
    for (const [key, , read, warns] of ROWS) {
      const [value, unit] = read(figures);
      this.#cells[key].textContent = value === undefined || value === null ? "–" : `${value} ${unit}`.trim();
      this.#cells[key].toggleAttribute("data-warn", warns?.(figures) ?? false);
    }
    if (figures.seen !== undefined) this.#seen.push(figures.seen);
    this.#seen.splice(0, this.#seen.length - HISTORY);
    // The model's own rate is the dotted line at a fifth from the top.
    const top = 1.25 * (figures.goal_fps ?? 24);
    this.#line.setAttribute("points", this.#seen.map((v, i) => `${i},${30 - (29.7 * Math.min(v, top)) / top}`).join(" "));
  }

  async #own() {
    const track = this.#call.tracks.find((t) => t.kind === "video");
    const report = await track?.getRTCStatsReport?.();
    const now = report && [...report.values()].find((s) => s.type === "inbound-rtp");
    if (!now) return {};
    const before = this.#before;
    this.#before = now;
    const own = { jitter: now.jitter * 1000, freezes: now.freezeCount };
    if (before && now.timestamp > before.timestamp) {
      const emitted = now.jitterBufferEmittedCount - before.jitterBufferEmittedCount;
      own.seen = (now.framesDecoded - before.framesDecoded) / ((now.timestamp - before.timestamp) / 1000);
      own.buffer = emitted ? ((now.jitterBufferDelay - before.jitterBufferDelay) / emitted) * 1000 : undefined;
    }
    return own;
  }
}
