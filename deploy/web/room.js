// The call: a LiveKit room with one character in it.

import { pause, Problem } from "./session.js";
import { RENDERED, Witness } from "./witness.js";

const LK = globalThis.LivekitClient;
const HEARING = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };

// A media server on the same machine is back within a second or two: asked more often than by the client's own rule.
const PATIENT = { nextRetryDelayInMs: ({ retryCount, elapsedMs }) => (elapsedMs < 60_000 ? Math.min(300 * retryCount, 1000) : null) };

// What is sent while the server or the character is away is dropped, and nobody is told. So a message has an id in this
// attribute, whoever has read it returns the id on the topic of the same name, and until then it is sent again.
const ACK = "characters.ack";
const AGAIN_MS = 1500;
const PATIENCE_MS = 60_000;

// The application refuses this identity, and a token of kind agent, to users: nobody else can send under either.
const CHARACTER = "character";

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

/**
 * With the numbers of frames, Chromium plays nothing that the page does not take and hand on in encoded form. The client
 * does so for pictures only.
 */
function letThrough(receiver) {
  try {
    const { readable, writable } = receiver.createEncodedStreams();
    readable.pipeTo(writable).catch(() => {}); // ends with the track
  } catch {
    // Another browser, or a receiver that serves its second track: nothing is held up.
  }
}

/** A text that the end of a connection cuts off got no ack, so it is sent again. */
function unlessCut(error) {
  if (error?.name !== "DataStreamError") throw error;
}

export class Call {
  #room = null;
  #character = null;
  #elements;
  #on;
  #meter = null;
  #typing = Promise.resolve(); // the newest message is settled
  #acks = new Map(); // id of a message on its way -> what its ack calls
  #read = new Set(); // ids of notices that have been shown
  #witness;
  #still = false; // the picture stands: such a face does not speak

  /**
   * @param {{video: HTMLVideoElement, audio: HTMLAudioElement}} elements
   * @param {object} on
   * @param {(seen: boolean) => void} on.face the first picture has come, or the character has gone
   * @param {(state: string) => void} on.state of the character: "initializing", "listening", "thinking", "speaking"
   * @param {(caption: {id: string, mine: boolean, text: string, final: boolean}) => void} on.caption
   * @param {(text: string) => void} on.notice something to be told to the user
   * @param {(figures: object) => void} on.figures the server's, once a second
   * @param {() => void} on.sound whether the browser lets sound be played may have changed
   * @param {(connected: boolean) => void} on.connection lost for now, or back
   * @param {(problem: Problem) => void} on.lost for good
   */
  constructor(elements, on) {
    this.#elements = elements;
    this.#on = on;
    this.#witness = new Witness(elements.video, (report) => {
      const data = new TextEncoder().encode(JSON.stringify(report));
      this.#room?.localParticipant.publishData(data, { reliable: false, topic: RENDERED }).catch(() => {});
    }, (still) => { this.#still = still; this.#judge(this.#character); });
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
    const worker = new Worker("static/livekit-client.worker.js"); // the room ends it
    const room = new LK.Room({ disconnectOnPageLeave: true, reconnectPolicy: PATIENT, frameMetadata: { worker } });
    const E = LK.RoomEvent;
    room
      .on(E.TrackSubscribed, (track, _, who) => this.#show(track, who))
      .on(E.TrackUnsubscribed, (track, _, who) => this.#hide(track, who))
      .on(E.ParticipantDisconnected, (who) => this.#part(who))
      .on(E.ParticipantAttributesChanged, (_, who) => this.#judge(who))
      .on(E.ActiveSpeakersChanged, () => this.#judge(this.#character))
      .on(E.AudioPlaybackStatusChanged, () => this.#on.sound())
      .on(E.DataReceived, (data, who, _kind, topic) => this.#take(data, topic, who?.identity))
      .on(E.SignalReconnecting, () => this.#on.connection(false))
      .on(E.Reconnecting, () => this.#on.connection(false))
      .on(E.Reconnected, () => this.#on.connection(true))
      .on(E.Disconnected, (reason) => this.#lost(room, reason));
    room.registerTextStreamHandler("lk.transcription", (reader, who) => this.#caption(reader, who).catch(unlessCut));
    room.registerTextStreamHandler("characters.notice", (reader, who) => this.#notice(reader, who).catch(unlessCut));
    try {
      await room.connect(url, token);
    } catch (error) {
      worker.terminate();
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

  /**
   * Resolves when the character has the text; it waits for a lost connection, also over another `join`.
   * @param {AbortSignal} signal gives it up
   * @throws {Problem}
   */
  type(text, signal) {
    const message = this.#typing.then(() => this.#deliver(text, signal));
    this.#typing = message.catch(() => {});
    return message;
  }

  async #deliver(text, signal) {
    const id = crypto.getRandomValues(new Uint32Array(4)).join("-");
    const until = performance.now() + PATIENCE_MS;
    const received = new Promise((resolve) => { this.#acks.set(id, () => resolve(true)); });
    try {
      while (performance.now() < until) {
        const ready = this.connected && this.#character;
        if (ready) {
          this.#room.localParticipant.sendText(text, { topic: "lk.chat", attributes: { [ACK]: id } }).catch(() => {});
        }
        if (await Promise.race([received, pause(ready ? AGAIN_MS : 100, signal)])) return;
      }
      throw new Problem("not_delivered");
    } finally {
      this.#acks.delete(id);
    }
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
    this.#witness.leave();
    this.#meter?.cleanup();
    this.#meter = null;
    await room?.disconnect();
  }

  #show(track, who) {
    if (!this.#isCharacter(who.identity)) return; // another participant's camera or microphone
    const { video, audio } = this.#elements;
    if (track.kind === "video") {
      this.#character = who;
      track.attach(video);
      this.#witness.watch(track);
      video.addEventListener("loadeddata", () => this.#on.face(true), { once: true });
      this.#judge(who);
    } else {
      letThrough(track.receiver);
      track.attach(audio);
    }
  }

  #hide(track, who) {
    track.detach();
    if (track.kind !== "video" || !this.#isCharacter(who.identity)) return;
    this.#witness.leave();
    this.#on.face(false);
  }

  #part(who) {
    if (who !== this.#character) return;
    this.#character = null;
    this.#on.face(false);
  }

  #judge(who) {
    if (!who || who !== this.#character) return;
    const said = who.attributes["lk.agent.state"] ?? (who.isSpeaking ? "speaking" : "listening");
    const told = this.#still ? "initializing" : said;
    this.#on.state(["initializing", "thinking", "speaking"].includes(told) ? told : "listening");
  }

  #isCharacter(identity) {
    return identity === CHARACTER || !!this.#room?.remoteParticipants.get(identity)?.isAgent;
  }

  /** The character's words, and the user's own, which come under the user's identity: only an agent can send so. */
  async #caption(reader, { identity }) {
    const about = reader.info.attributes ?? {};
    const mine = identity === this.#room?.localParticipant.identity;
    if (!mine && !this.#isCharacter(identity)) return; // another participant, who could write anything
    const id = about["lk.segment_id"] ?? reader.info.id;
    const final = about["lk.transcription_final"] !== "false";
    let text = "";
    for await (const piece of reader) {
      text += piece;
      this.#on.caption({ id, mine, text, final: false });
    }
    this.#on.caption({ id, mine, text, final });
    this.#confirm(reader);
  }

  async #notice(reader, { identity }) {
    if (!this.#isCharacter(identity)) return;
    const text = await reader.readAll();
    const id = this.#confirm(reader);
    if (this.#read.has(id)) return;
    this.#read.add(id);
    this.#on.notice(text);
  }

  /** Gives an ack for a message that has been read whole, if one is asked for; its id. */
  #confirm(reader) {
    const id = reader.info.attributes?.[ACK];
    const me = this.#room?.localParticipant;
    // One that is lost is asked for again.
    if (id) me?.publishData(new TextEncoder().encode(id), { reliable: true, topic: ACK }).catch(() => {});
    return id;
  }

  #take(data, topic, identity) {
    if (!this.#isCharacter(identity)) return;
    const text = new TextDecoder().decode(data);
    if (topic === ACK) this.#acks.get(text)?.();
    if (topic !== "characters.figures") return;
    try {
      this.#on.figures(JSON.parse(text));
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
