// The dialog in which microphone, speaker and volume are chosen; the browser remembers them.

const $ = (id) => document.getElementById(id);
const read = (key) => localStorage.getItem(`characters.${key}`) ?? "";
const write = (key, value) => localStorage.setItem(`characters.${key}`, value);

export class Devices {
  #audio; #changed;

  /**
   * @param {HTMLAudioElement} audio what the character is heard through
   * @param {(deviceId: string) => unknown} changed another microphone was chosen
   */
  constructor(audio, changed) {
    this.#audio = audio;
    this.#changed = changed;
    $("speaker-field").hidden = !("setSinkId" in audio);
    $("volume").value = read("volume") || 100;
    this.#volume();
    this.#speaker();
    $("volume").addEventListener("input", () => this.#volume());
    $("audioinput").addEventListener("change", (e) => { write("audioinput", e.target.value); changed(e.target.value); });
    $("audiooutput").addEventListener("change", (e) => { write("audiooutput", e.target.value); this.#speaker(); });
    $("devices-open").addEventListener("click", () => this.#open());
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.#fill());
  }

  get microphone() { return read("audioinput"); }

  async #open() {
    $("devices").showModal();
    await this.#fill();
  }

  async #fill() {
    const found = (await navigator.mediaDevices?.enumerateDevices?.().catch(() => [])) ?? [];
    for (const kind of ["audioinput", "audiooutput"]) {
      const named = found.filter((d) => d.kind === kind && d.deviceId && d.deviceId !== "default");
      const options = [new Option("Default", ""), ...named.map((d, i) => new Option(d.label || `Device ${i + 1}`, d.deviceId))];
      $(kind).replaceChildren(...options);
      $(kind).value = named.some((d) => d.deviceId === read(kind)) ? read(kind) : "";
    }
    const unknown = !found.some((d) => d.kind === "audioinput" && d.label);
    $("devices-hint").hidden = !unknown;
    $("devices-hint").textContent = "Names appear once the browser may use the microphone.";
  }

  #volume() {
    write("volume", $("volume").value);
    this.#audio.volume = $("volume").value / 100;
  }

  #speaker() {
    // A speaker that has been unplugged: the default one plays on.
    this.#audio.setSinkId?.(read("audiooutput")).catch(() => {});
  }
}
