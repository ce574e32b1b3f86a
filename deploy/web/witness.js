// Tells the server when its frames were seen: each carries its number, which a worker of the client reads. Tells the page
// when none comes any more.

export const RENDERED = "characters.rendered";
const APART_MS = 150; // between two frames that are told of
const REPORT_MS = 1000;
const LONGEST = 100; // frames of a report
const STILL_MS = 1200; // without a frame: the picture stands
const LOOK_MS = 200;

export class Witness {
  #video; #send; #stands;
  #track = null;
  #newest = null; // {frame, at}
  #seen = []; // frames that the next report tells of, but the newest: the server may not know its chunk yet
  #timer = null;
  #shown = 0; // when the newest frame was seen
  #still = false;
  #looking = null;
  #hiddenUntil = 0; // a page that nobody sees is shown no frames

  /**
   * @param {HTMLVideoElement} video that the track is attached to
   * @param {(report: Array<[number, number]>) => void} send takes [number of the frame, ms since it was seen] of each
   * @param {(still: boolean) => void} stands the picture stands still, or moves again
   */
  constructor(video, send, stands) {
    this.#video = video;
    this.#send = send;
    this.#stands = stands;
    document.addEventListener("visibilitychange", () => { this.#hiddenUntil = performance.now(); });
  }

  watch(track) {
    this.leave();
    // A browser without these calls shows the character all the same.
    if (!this.#video.requestVideoFrameCallback) return;
    this.#track = track;
    this.#next(track);
    this.#looking = setInterval(() => this.#look(), LOOK_MS);
    if (!track.lookupFrameMetadata) return;
    this.#timer = setInterval(() => this.#report(), REPORT_MS);
  }

  leave() {
    clearInterval(this.#timer);
    clearInterval(this.#looking);
    this.#shown = 0;
    this.#stand(false);
    this.#track = this.#newest = null;
    this.#seen = [];
  }

  #next(track) {
    this.#video.requestVideoFrameCallback((_, { rtpTimestamp, expectedDisplayTime }) => {
      if (track !== this.#track) return;
      this.#shown = performance.now();
      this.#stand(false);
      const frame = rtpTimestamp === undefined ? undefined : track.lookupFrameMetadata?.({ rtpTimestamp })?.frameId;
      if (frame !== undefined && (!this.#newest || expectedDisplayTime - this.#newest.at >= APART_MS)) {
        if (this.#newest) this.#seen.push(this.#newest);
        this.#newest = { frame, at: expectedDisplayTime };
      }
      this.#next(track);
    });
  }

  /** A hidden page is shown no frames, and its clock is slow: it says nothing of the picture. */
  #look() {
    const since = Math.max(this.#shown, this.#hiddenUntil);
    if (this.#shown && !document.hidden && performance.now() - since > STILL_MS) this.#stand(true);
  }

  #stand(still) {
    if (still === this.#still) return;
    this.#still = still;
    this.#stands(still);
  }

  async #report() {
    const seen = this.#seen.splice(0, LONGEST);
    if (!seen.length) return;
    // The report itself travels for half a round trip.
    const report = await this.#track.getRTCStatsReport?.();
    const pair = [...(report?.values() ?? [])].find((s) => s.type === "candidate-pair" && s.currentRoundTripTime !== undefined);
    const now = performance.now() + (pair?.currentRoundTripTime ?? 0) * 500;
    this.#send(seen.map(({ frame, at }) => [frame, Math.round(now - at)]));
  }
}
