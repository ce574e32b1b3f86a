// The portraits to choose from: radio buttons, so that arrow keys and screen readers know what to do.

/** Fills `box` with a card for each character. */
export function fill(box, characters, chosen) {
  box.replaceChildren(...characters.map((c) => {
    const card = document.createElement("label");
    card.className = "card";
    const input = Object.assign(document.createElement("input"), {
      type: "radio", name: "character", value: c.slug, checked: c.slug === chosen, className: "unseen",
    });
    const picture = Object.assign(document.createElement("img"), {
      src: c.portrait_url, alt: "", width: 176, height: 272, decoding: "async",
    });
    const name = Object.assign(document.createElement("b"), { textContent: c.name });
    const about = Object.assign(document.createElement("span"), { textContent: c.description, id: `about-${c.slug}` });
    input.setAttribute("aria-labelledby", (name.id = `name-${c.slug}`));
    input.setAttribute("aria-describedby", about.id);
    card.append(input, picture, name, about);
    if (!c.animated) {
      const other = c.models.length ? `needs another model: ${c.models.join(", ")}` : "needs another model";
      const what = c.portrait === "photograph" ? "A photograph" : "A drawing";
      const note = Object.assign(document.createElement("em"), { textContent: `${what}, ${other}`, id: `needs-${c.slug}` });
      input.setAttribute("aria-describedby", `${about.id} ${note.id}`);
      card.append(note);
    }
    return card;
  }));
}

/** Gives the page the colours of a portrait: soft light from its corners, above the clothes. Cheaper than a blur under a moving picture. */
export async function tint(url) {
  const picture = new Image();
  picture.src = url;
  try {
    await picture.decode();
  } catch {
    return; // no portrait, no light
  }
  const canvas = Object.assign(document.createElement("canvas"), { width: 6, height: 9 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.imageSmoothingQuality = "high";
  pen.drawImage(picture, 0, 0, 6, 9);
  const pixels = pen.getImageData(0, 0, 6, 9).data;
  [[0, "a"], [5, "b"], [30, "c"], [35, "d"]].forEach(([at, name]) => {
    const [r, g, b] = pixels.slice(at * 4, at * 4 + 3);
    document.documentElement.style.setProperty(`--tone-${name}`, `rgb(${r} ${g} ${b})`);
  });
}
