// The page's call in a room of stand-ins, some of whom lie. Prints what the page was told, as JSON.

const handlers = {}, streams = {};
class Room {
  localParticipant = { identity: "ada", isMicrophoneEnabled: false, trackPublications: new Map([["T1", {}]]), publishData: async () => {} };
  remoteParticipants = new Map([
    ["character", { identity: "character", isAgent: true }], ["worker", { identity: "worker", isAgent: true }],
    ["eve", { identity: "eve", isAgent: false }],
  ]);
  canPlaybackAudio = true;
  on(event, handler) { handlers[event] = handler; return this; }
  registerTextStreamHandler(topic, handler) { streams[topic] = handler; }
  async connect() {}
}
globalThis.LivekitClient = { Room, RoomEvent: new Proxy({}, { get: (_, name) => name }), ConnectionState: {} };
globalThis.Worker = class {};
globalThis.document = { addEventListener() {} };
const told = { captions: [], notices: [], figures: [], attached: [] };
const { Call } = await import(process.argv[2]);
const on = new Proxy({
  caption: ({ mine, text, final }) => final && told.captions.push([mine, text]),
  notice: (text) => told.notices.push(text),
  figures: (figures) => told.figures.push(figures),
}, { get: (known, name) => known[name] ?? (() => {}) });
const call = new Call({ video: {}, audio: {} }, on);
await call.join("ws://nowhere", "token");
function reader(text, attributes = {}) {
  return {
    info: { id: text, attributes: { "lk.transcription_final": "true", ...attributes } },
    async *[Symbol.asyncIterator]() { yield text; },
    readAll: async () => text,
  };
}
for (const identity of ["character", "worker", "eve", "ada", "gone"]) {
  const who = { identity };
  await streams["lk.transcription"](reader(`said by ${identity}`), who);
  await streams["lk.transcription"](reader(`track by ${identity}`, { "lk.transcribed_track_id": "T1" }), who);
  await streams["characters.notice"](reader(`notice by ${identity}`, { "characters.ack": `key-${identity}` }), who);
  handlers.DataReceived(new TextEncoder().encode(JSON.stringify({ by: identity })), who, 0, "characters.figures");
}
const track = { kind: "audio", receiver: {}, attach: () => told.attached.push("eve"), detach: () => {} };
handlers.TrackSubscribed(track, {}, { identity: "eve" });
try { handlers.TrackSubscribed({ ...track, kind: "video" }, {}, { identity: "eve", attributes: {} }); } catch { told.attached.push("eve"); }
console.log(JSON.stringify(told));
process.exit(0);
