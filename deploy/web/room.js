// The call: a LiveKit room with one character in it.

import { Problem } from "./session.js";

const LK = globalThis.LivekitClient;
const HEARING = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };

// A media server on the same machine is back within a second or two: asked more often than by the client's own rule.
const PATIENT = { nextRetryDelayInMs: ({ retryCount, elapsedMs }) => (elapsedMs < 60_000 ? Math.min(300 * retryCount, 1000) : null) };

/** The code of what makes calls impossible here; null if nothing does. */
export function obstacle() {
  if (!LK) return "no_client";
  return LK.isBrowserSupported() ? null : "unsupported";
}

/** Opens the microphone. @throws {Problem} with a code that says why not */
export async function openMicrophone(deviceId) {
  if (!navigator.mediaDevices?.getUserMedia) throw new Problem("microphone_insecure");
  try {
    return await LK.createLocalAudioTrack({ ...HEARING, deviceId: deviceId || undefined });
  } catch (error) {
    if (error.name === "OverconstrainedError" && deviceId) return openMicrophone();
    const code = { NotAllowedError: "microphone_denied", NotFoundError: "no_microphone" }[error.name];
    throw new Problem(code ?? "microphone_busy", error.message);
  }
}

export class Call {
  #room = null;
  #character = null;
  #elements;
  #on;
  #meter = null;

  /**
   * @param {{video: HTMLVideoElement, audio: HTMLAudioElement}} elements
   * @param {object} on
   * @param {(seen: boolean) => void} on.face the first picture has come, or the character has gone
   * @param {(state: string) => void} on.state of the character: "listening", "thinking", "speaking"
   * @param {(caption: {id: string, mine: boolean, text: string, final: boolean}) => void} on.caption
   * @param {(figures: object) => void} on.figures the server's, once a second
   * @param {() => void} on.sound whether the browser lets sound be played may have changed
   * @param {(connected: boolean) => void} on.connection lost for now, or back
   * @param {(problem: Problem) => void} on.lost for good
   */
  constructor(elements, on) {
    this.#elements = elements;
    this.#on = on;
  }

  get joined() { return this.#room !== null; }
  get connected() { return this.#room?.state === LK.ConnectionState.Connected; }
  get soundBlocked() { return this.#room !== null && !this.#room.canPlaybackAudio; }
  get listening() { return this.#room?.localParticipant.isMicrophoneEnabled ?? false; }
  get loudness() { return this.listening && this.#meter ? this.#meter.calculateVolume() : 0; }

  /** Tracks of the character, for their statistics. */
  get tracks() {
    return [...(this.#character?.trackPublications.values() ?? [])].map((p) => p.track).filter(Boolean);
  }

  /** @throws {Problem} */
  async join(url, token) {
    const room = new LK.Room({ disconnectOnPageLeave: true, reconnectPolicy: PATIENT });
    const E = LK.RoomEvent;
    room
      .on(E.TrackSubscribed, (track, _, who) => this.#show(track, who))
      .on(E.TrackUnsubscribed, (track) => { track.detach(); if (track.kind === "video") this.#on.face(false); })
      .on(E.ParticipantDisconnected, (who) => { if (who === this.#character) this.#on.face(false); })
      .on(E.ParticipantAttributesChanged, (_, who) => this.#judge(who))
      .on(E.ActiveSpeakersChanged, () => this.#judge(this.#character))
      .on(E.AudioPlaybackStatusChanged, () => this.#on.sound())
      .on(E.DataReceived, (data, _who, _kind, topic) => this.#figures(data, topic))
      .on(E.SignalReconnecting, () => this.#on.connection(false))
      .on(E.Reconnecting, () => this.#on.connection(false))
      .on(E.Reconnected, () => this.#on.connection(true))
      .on(E.Disconnected, (reason) => this.#lost(room, reason));
    room.registerTextStreamHandler("lk.transcription", (reader, who) => this.#read(reader, who));
    try {
      await room.connect(url, token);
    } catch (error) {
      throw new Problem("room_unreachable", error.message);
    }
    this.#room = room;
    this.#on.sound();
  }

  /** Publishes a track from `openMicrophone`. */
  async speak(track) {
    await this.#room.localParticipant.publishTrack(track, { source: LK.Track.Source.Microphone, dtx: false });
    this.#listenIn();
  }

  /** Mutes, unmutes, or opens the microphone in a call that was only typed. @throws {Problem} */
  async mute(muted, deviceId) {
    const me = this.#room.localParticipant;
    const has = me.getTrackPublication(LK.Track.Source.Microphone);
    if (!muted && !has) await this.speak(await openMicrophone(deviceId));
    else if (has) await (muted ? has.mute() : has.unmute());
  }

  async type(text) {
    await this.#room.localParticipant.sendText(text, { topic: "lk.chat" });
  }

  async interrupt() {
    if (!this.#character) return;
    await this.#room.localParticipant.performRpc({
      destinationIdentity: this.#character.identity, method: "interrupt", payload: "",
    });
  }

  startSound() { return this.#room?.startAudio(); }

  useMicrophone(deviceId) { return this.#room?.switchActiveDevice("audioinput", deviceId); }

  async leave() {
    const room = this.#room;
    this.#room = this.#character = null;
    this.#meter?.cleanup();
    this.#meter = null;
    await room?.disconnect();
  }

  #show(track, who) {
    // Whoever shows a face is the character; a second client of the user has a microphone only.
    const { video, audio } = this.#elements;
    if (track.kind === "video") {
      this.#character = who;
      track.attach(video);
      video.addEventListener("loadeddata", () => this.#on.face(true), { once: true });
      this.#judge(who);
    } else if (who.isAgent || who.identity === "character") {
      track.attach(audio);
    }
  }

  #judge(who) {
    if (!who || who !== this.#character) return;
    const told = who.attributes["lk.agent.state"];
    const speaking = told ? told === "speaking" : who.isSpeaking;
    this.#on.state(speaking ? "speaking" : told === "thinking" ? "thinking" : "listening");
  }

  async #read(reader, { identity }) {
    const about = reader.info.attributes ?? {};
    const me = this.#room?.localParticipant;
    const track = about["lk.transcribed_track_id"];
    const mine = identity === me?.identity || (!!track && [...me.trackPublications.keys()].includes(track));
    const id = about["lk.segment_id"] ?? reader.info.id;
    const final = about["lk.transcription_final"] !== "false";
    let text = "";
    for await (const piece of reader) {
      text += piece;
      this.#on.caption({ id, mine, text, final: false });
    }
    this.#on.caption({ id, mine, text, final });
  }

  #figures(data, topic) {
    if (topic !== "characters.ledger") return;
    try {
      this.#on.figures(JSON.parse(new TextDecoder().decode(data)));
    } catch {
      // Figures are for looking at; a broken one is no reason to disturb a call.
    }
  }

  #lost(room, reason) {
    if (room !== this.#room) return; // we left
    this.leave();
    const twice = reason === LK.DisconnectReason.DUPLICATE_IDENTITY;
    this.#on.lost(new Problem(twice ? "elsewhere" : "disconnected"));
  }

  #listenIn() {
    this.#meter?.cleanup();
    const track = this.#room.localParticipant.getTrackPublication(LK.Track.Source.Microphone)?.track;
    this.#meter = track ? LK.createAudioAnalyser(track) : null;
  }
}
