// Sessions over HTTP. A session's id lives as long as the tab, so that a reloaded page finds its character again.

const KEPT = "characters.session";
const POLL_MS = 1000;

/** An answer that is an error, or none at all; `code` is stable (see words.js). */
export class Problem extends Error {
  constructor(code, message = code) {
    super(message);
    this.code = code;
  }
}

/** A server with an API key is opened as …/#key=KEY, which stays out of its logs; the tab remembers it. */
function apiKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    sessionStorage.setItem("characters.key", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("characters.key");
}

async function call(method, path, body) {
  const headers = {};
  const key = apiKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(10_000), cache: "no-store",
    });
  } catch {
    throw new Problem("server_gone");
  }
  const found = await answer.json().catch(() => null);
  if (answer.ok && found !== null) return found;
  // Without a body of ours it was a proxy, or a server that is going down.
  throw new Problem(found?.error?.code ?? (answer.status >= 500 ? "server_gone" : "unknown"), found?.error?.message);
}

export const characters = () => call("GET", "v1/characters");

export const health = () => call("GET", "healthz");

export const create = (character, participant_name) => call("POST", "v1/sessions", { character, participant_name });

export const look = (id) => call("GET", `v1/sessions/${encodeURIComponent(id)}`);

export const end = (id) => call("DELETE", `v1/sessions/${encodeURIComponent(id)}`);

export const keep = (what) => sessionStorage.setItem(KEPT, JSON.stringify(what));

export const forget = () => sessionStorage.removeItem(KEPT);

export function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null;
  }
}

const over = (session) => ["COMPLETED", "FAILED", "CANCELLED"].includes(session.state);

/**
 * Wait until a session can be joined.
 * @param {object} session as the server last described it, or only {id}
 * @param {(session: object) => void} queued told of each answer while the session waits
 * @param {AbortSignal} signal
 * @param {number} patience ms without any answer, after which the server is given up
 * @throws {Problem} it is over, with its code, or the server is gone
 */
export async function ready(session, queued, signal, patience = 15_000) {
  let answered = performance.now();
  for (;;) {
    if (session.participant_token) return session;
    if (session.state) {
      if (over(session)) throw new Problem(session.error?.code ?? session.state.toLowerCase(), session.error?.message);
      queued(session);
      await pause(POLL_MS, signal);
    }
    try {
      session = await look(session.id);
      answered = performance.now();
    } catch (problem) {
      if (problem.code !== "server_gone" || performance.now() - answered > patience) throw problem;
      await pause(POLL_MS, signal);
    }
    signal.throwIfAborted();
  }
}

export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}
