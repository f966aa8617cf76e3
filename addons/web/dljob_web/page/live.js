// A live page: how it asks its server. On one machine it has the token of the address that `dljob up --web` or `dljob web` has printed.
// On a cluster users log in with a token of theirs; it begins a session, whose cookie no script can read. A browser sends the
// cookie to all ports of the host, so the session has a proof as well, which this origin alone keeps.
import { take } from "./view.js";

const PLACE = "dljob-token";
const PROOF = "dljob-session-proof";
const SESSION = "/api/v1/session";
export const hasLogin = document.querySelector('meta[name="dljob-login"]') !== null;
const EVERY_MS = 5000;

// Keeps a token out of the address, which people send to each other; a reload still has it.
export function keepToken() {
  const place = new URLSearchParams(location.hash.slice(1));
  if (!place.has("token")) return;
  if (!hasLogin) setToken(place.get("token"));
  place.delete("token");
  history.replaceState(null, "", `#${place}`);
}

function setToken(token) {
  sessionStorage.setItem(PLACE, token.trim());
}

// All tabs of a browser have one session.
const otherTabs = hasLogin ? new BroadcastChannel("dljob-session") : null;

// Lets the server know the user by this token from now on.
export async function logIn(token) {
  if (hasLogin) await changeSession({ method: "POST", headers: { Authorization: `Bearer ${token.trim()}` } });
  else setToken(token);
}

export async function logOut() {
  await changeSession({ method: "DELETE" });
}

async function changeSession(options) {
  const { proof } = await (await send(SESSION, options)).json();
  if (proof) localStorage.setItem(PROOF, proof);
  else localStorage.removeItem(PROOF);
  otherTabs.postMessage("changed");
}

// Tells when another tab has logged a user in or out.
export function hearOtherTabs(tell) {
  if (otherTabs) otherTabs.onmessage = tell;
}

// Asks the server; an answer that is no success is an error with the server's own sentence.
export function ask(path, options = {}) {
  if (hasLogin) return send(path, options);
  return send(path, { ...options, headers: { ...options.headers, Authorization: `Bearer ${sessionStorage.getItem(PLACE) || ""}` } });
}

async function send(path, options) {
  let answer;
  try {
    const proof = hasLogin ? { "X-DLJob-Session": localStorage.getItem(PROOF) || "" } : {};
    answer = await fetch(path, { ...options, headers: { ...proof, ...options.headers }, cache: "no-store" });
  } catch {
    throw new Error(`The server of this page does not answer.${hasLogin ? "" : " It ends with its command, whose next start prints another address."}`);
  }
  if (answer.ok || answer.status === 304) return answer;
  const told = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(told.error || `The server answers with status ${answer.status}.`), { status: answer.status });
}

// Whether the server shows nothing to this user, or does not know the user.
export const isRefusal = (error) => error.status === 401 || error.status === 403;

// Asks for the record again and again while the page is in sight, and tells what came of it.
export class Following {
  constructor(tell) {
    this.tell = tell;
    this.session = 0;
    document.addEventListener("visibilitychange", () => this.look());
    this.start();
  }

  // Begins with nothing known. An answer to an earlier session that is still under way does not count, because it may be for another user.
  start() {
    this.stop();
    this.isStopped = false;
    this.look();
  }

  stop() {
    clearTimeout(this.timer);
    this.session += 1;
    this.tag = "";
    this.isAsking = false;
    this.isStopped = true;
  }

  async look() {
    clearTimeout(this.timer);
    if (document.hidden || this.isAsking || this.isStopped) return;
    const { session } = this;
    this.isAsking = true;
    let told;
    try {
      const answer = await ask("/api/v1/page", { headers: this.tag ? { "If-None-Match": this.tag } : {} });
      const fresh = answer.status === 304 ? null : await answer.json();
      if (session !== this.session) return;
      this.tag = answer.headers.get("ETag") || "";
      told = { problem: null, later: fresh && take(fresh), at: Date.now() };
    } catch (error) {
      if (session !== this.session) return;
      // The page forgets what it has, so that the next answer must be whole.
      if (isRefusal(error)) this.tag = "";
      told = { problem: error.message, isEmpty: isRefusal(error), isRefused: error.status === 401 };
    }
    this.isAsking = false;
    this.timer = setTimeout(() => this.look(), EVERY_MS);
    this.tell(told);
  }
}
