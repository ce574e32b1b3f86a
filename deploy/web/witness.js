// Tells the server when its frames were seen: each carries its number, which a worker of the client reads.

export const RENDERED = "characters.rendered";
const APART_MS = 150; // between two frames that are told of
const REPORT_MS = 1000;
const LONGEST = 100; // frames of a report

export class Witness {
  #video; #send;
  #track = null;
  #newest = null; // {frame, at}
  #seen = []; // frames that the next report tells of, but the newest: the server may not know its chunk yet
  #timer = null;

  /**
   * @param {HTMLVideoElement} video that the track is attached to
   * @param {(report: Array<[number, number]>) => void} send takes [number of the frame, ms since it was seen] of each
   */
  constructor(video, send) {
    this.#video = video;
    this.#send = send;
  }

  watch(track) {
    this.leave();
    // A browser without these calls shows the character all the same.
    if (!this.#video.requestVideoFrameCallback || !track.lookupFrameMetadata) return;
    this.#track = track;
    this.#next(track);
    this.#timer = setInterval(() => this.#report(), REPORT_MS);
  }

  leave() {
    clearInterval(this.#timer);
    this.#track = this.#newest = null;
    this.#seen = [];
  }

  #next(track) {
    this.#video.requestVideoFrameCallback((_, { rtpTimestamp, expectedDisplayTime }) => {
      if (track !== this.#track) return;
      const frame = rtpTimestamp === undefined ? undefined : track.lookupFrameMetadata({ rtpTimestamp })?.frameId;
      if (frame !== undefined && (!this.#newest || expectedDisplayTime - this.#newest.at >= APART_MS)) {
        if (this.#newest) this.#seen.push(this.#newest);
        this.#newest = { frame, at: expectedDisplayTime };
      }
      this.#next(track);
    });
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
