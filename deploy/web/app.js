// The page: choosing, waiting, talking, and what happens when one of them goes wrong.

import { Captions } from "./captions.js";
import { Devices } from "./devices.js";
import { fill, tint } from "./gallery.js";
import { Panel } from "./panel.js";
import { Call, obstacle, openMicrophone } from "./room.js";
import * as sessions from "./session.js";
import { Problem } from "./session.js";
import { describe, duration, queued } from "./words.js";

const $ = (id) => document.getElementById(id);
const AWAY_MS = 60_000; // how long a lost call is looked for
const LONGEST_PAUSE_MS = 4000;

const audio = $("audio");
const captions = new Captions($("lines"), (text) => { $("announce").textContent = text; });
const call = new Call({ video: $("video"), audio }, {
  face: onFace,
  state: (state) => { heart = state; show(); },
  caption: (caption) => captions.show(caption),
  notice: (text) => captions.note(text),
  figures: (figures) => panel.take(figures),
  sound: () => { $("sound-on").hidden = !call.soundBlocked; },
  connection: (connected) => say(connected ? "" : "The connection is weak. Reconnecting…"),
  lost: onLost,
});
const panel = new Panel($("panel"), call);
const devices = new Devices(audio, (id) => call.joined && attempt(() => call.useMicrophone(id)));

let known = []; // the characters
let session = null; // {id, slug, voice} of the call, or null in the lobby
let trip = null; // AbortController of everything that belongs to the call
let microphone = null; // a track that waits for the room
let began = 0;
let heart = "listening";
let message = ""; // what is to be said instead of the character's state

// The lobby.

async function open() {
  const code = obstacle();
  if (code) return complain(new Problem(code));
  try {
    known = await sessions.characters();
  } catch (problem) {
    return complain(problem, open);
  }
  sessions.health().then((found) => { $("noise").hidden = !found.random_weights; }, () => {});
  if (!known.length) return complain(new Problem("no_characters"));
  fill($("gallery"), known, localStorage.getItem("characters.chosen") ?? known[0].slug);
  if (!chosen()) $("gallery").querySelector("input").checked = true;
  $("name").value = localStorage.getItem("characters.name") ?? "";
  choose();
  const kept = sessions.kept();
  if (kept && known.some((c) => c.slug === kept.slug)) resume(kept);
  else visit("lobby");
}

function chosen() {
  const slug = document.querySelector("input[name=character]:checked")?.value;
  return known.find((c) => c.slug === slug);
}

function choose() {
  const character = chosen();
  localStorage.setItem("characters.chosen", character.slug);
  $("chosen").textContent = `“${character.greeting}”`;
  $("talk").lastChild.textContent = `Talk to ${character.name}`;
  tint(character.portrait_url);
}

// The call.

async function start(voice) {
  const character = chosen();
  localStorage.setItem("characters.name", $("name").value.trim());
  quiet();
  let track = null;
  try {
    if (voice) track = await openMicrophone(devices.microphone);
    $("lobby").inert = true;
    const made = await sessions.create(character.slug, $("name").value.trim());
    enter({ id: made.id, slug: character.slug, voice }, track);
    await connect(made);
  } catch (problem) {
    track?.stop();
    await fail(problem, () => start(voice));
  } finally {
    $("lobby").inert = false;
  }
}

/** After a reload: the character waits for a while. */
async function resume(kept) {
  enter(kept, null);
  say(`Finding ${captions.name} again…`);
  try {
    await connect({ id: kept.id });
  } catch (problem) {
    await fail(problem);
  }
}

function enter(which, track) {
  const character = known.find((c) => c.slug === which.slug);
  session = which;
  microphone = track;
  trip = new AbortController();
  began = 0;
  sessions.keep(which);
  captions.clear(character.name);
  panel.reset();
  tint(character.portrait_url);
  $("call-title").textContent = character.name;
  $("poster").src = character.portrait_url;
  $("text").placeholder = `Type to ${character.name}`;
  onFace(false);
  say("Getting ready…");
  visit("call");
}

/** Waits for the session and joins its room. @throws {Problem} */
async function connect(found, patience) {
  const { signal } = trip;
  found = await sessions.ready(found, (s) => say(queued(s)), signal, patience);
  say(`Calling ${captions.name}…`);
  await call.join(found.server_url, found.participant_token);
  if (signal.aborted) return call.leave(); // hung up meanwhile
  began ||= performance.now();
  say("");
  if (session.voice) {
    await attempt(async () => {
      microphone ??= await openMicrophone(devices.microphone);
      await call.speak(microphone);
    });
  }
  microphone = null; // the room's now
  show();
}

function onFace(seen) {
  $("frame").toggleAttribute("data-live", seen);
  if (!seen && began && session) say(`${captions.name} dropped out and is coming back…`);
  else if (seen) say("");
  show();
}

/** The room is gone: because the conversation is over, or by an accident, after which it is found again. */
async function onLost(problem) {
  onFace(false);
  if (problem.code === "elsewhere") {
    sessions.forget();
    return leave(problem);
  }
  const { signal } = trip;
  say("The connection was lost. Calling again…");
  const until = performance.now() + AWAY_MS;
  for (let wait = 250; ; wait = Math.min(wait * 2, LONGEST_PAUSE_MS)) {
    try {
      await sessions.pause(wait, signal);
      await connect({ id: session.id }, 0);
      captions.note("Connected again");
      return;
    } catch (again) {
      if (signal.aborted) return;
      const mends = ["server_gone", "room_unreachable"].includes(again.code);
      if (!mends || performance.now() > until) return fail(again, () => start(session?.voice ?? true));
    }
  }
}

/** Ends the call because of a problem; one that comes from hanging up is none. */
async function fail(problem, retry) {
  if (problem.name === "AbortError") return;
  if (session) await hangUp();
  await leave(problem, retry);
}

async function hangUp() {
  const { id } = session;
  await sessions.end(id).catch(() => {}); // the server ends it by itself when nobody is there
}

async function leave(problem, retry) {
  const talked = began && (performance.now() - began) / 1000;
  const name = captions.name;
  trip?.abort();
  microphone?.stop();
  session = microphone = null;
  sessions.forget();
  panel.toggle(false);
  $("figures").ariaExpanded = "false";
  await call.leave();
  visit("lobby");
  choose();
  if (problem && !(problem.code === "completed" && talked)) complain(problem, retry);
  else if (talked) tell(`You talked with ${name} for ${duration(talked)}.`);
}

/** Does something to the microphone; if that fails the call goes on in writing. */
async function attempt(action) {
  try {
    await action();
  } catch (problem) {
    const { title, advice } = describe(problem);
    captions.note(`${title} ${advice}`.trim());
  }
  show();
}

// What is to be seen.

function visit(view) {
  quiet();
  for (const id of ["lobby", "call"]) $(id).hidden = id !== view;
  document.body.dataset.view = view;
  document.title = view === "call" ? `${captions.name} · Characters` : "Characters";
  $(`${view}-title`).focus({ preventScroll: true });
  scrollTo(0, 0);
  show();
}

function say(text) {
  message = text;
  show();
}

function show() {
  const seen = call.joined && $("frame").hasAttribute("data-live");
  const active = seen && heart !== "initializing";
  const muted = call.joined && !call.listening;
  const state = { speaking: "Speaking", thinking: "Thinking…", listening: muted ? "Waiting for your text" : "Listening" };
  const text = message || (active ? state[heart] : seen ? "One moment…" : `${captions.name} is on the way…`);
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").dataset.is = active && !message ? heart : "waiting";
  $("frame").toggleAttribute("data-speaking", active && heart === "speaking");
  $("mic").disabled = !call.joined;
  $("mic").toggleAttribute("data-off", muted);
  $("mic").querySelector("span").textContent = muted ? "Unmute" : "Mute";
  $("mic").querySelector("use").setAttribute("href", muted ? "#i-mic-off" : "#i-mic");
  // Not `disabled`: that would take the focus from whoever has just pressed it.
  $("interrupt").ariaDisabled = String(!(active && heart !== "listening"));
  $("composer").inert = !call.joined;
}

function quiet() {
  $("notice").hidden = true;
}

function tell(text) {
  notice("status", [text], []);
}

function complain(problem, retry) {
  if (!problem.code) console.error(problem);
  const { title, advice, remedy } = describe(problem);
  const actions = [];
  if (remedy === "type") actions.push(["Type instead", () => start(false)]);
  if (remedy && retry) actions.push(["Try again", retry]);
  notice("alert", [title, advice], actions);
}

function notice(role, [title, advice], actions) {
  const box = $("notice");
  box.hidden = false;
  box.dataset.kind = role;
  $("notice-text").setAttribute("role", role);
  $("notice-text").replaceChildren(Object.assign(document.createElement("b"), { textContent: title }));
  if (advice) $("notice-text").append(Object.assign(document.createElement("p"), { textContent: advice }));
  $("notice-actions").replaceChildren(...actions.map(([label, does]) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
    button.addEventListener("click", () => { quiet(); does(); });
    return button;
  }));
  box.scrollIntoView({ block: "nearest" });
}

// What is done.

$("gallery").addEventListener("change", choose);
$("lobby").addEventListener("submit", (e) => { e.preventDefault(); start(true); });
$("type").addEventListener("click", () => start(false));
$("end").addEventListener("click", async () => {
  trip.abort();
  hangUp();
  await leave();
});
$("mic").addEventListener("click", () => attempt(async () => {
  await call.mute(call.listening, devices.microphone);
  session.voice = call.listening;
  sessions.keep(session);
}));
$("interrupt").addEventListener("click", interrupt);
$("sound-on").addEventListener("click", () => call.startSound());
$("figures").addEventListener("click", () => {
  panel.toggle(!panel.open);
  $("figures").ariaExpanded = String(panel.open);
});
$("composer").addEventListener("submit", async (e) => {
  e.preventDefault();
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  const arrived = captions.typed(text);
  try {
    await call.type(text, trip.signal);
    arrived();
  } catch (problem) {
    if (problem.name !== "AbortError") captions.note("Your message did not arrive.");
  }
});
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && call.joined && !$("devices").open) interrupt();
});

function interrupt() {
  if ($("interrupt").ariaDisabled === "true") return;
  call.interrupt().catch(() => captions.note(`${captions.name} could not be interrupted.`));
}

// How loud the user is heard, as a ring about the microphone.
setInterval(() => {
  if (call.joined) $("mic").style.setProperty("--loud", Math.min(1, call.loudness * 2).toFixed(2));
}, 100);

open();
