// A live page: how it asks its server, with the token of the address that `dljob up --web` has printed.
import { take } from "./view.js";

const PLACE = "dljob-token";
const EVERY_MS = 5000;

// Keeps a token out of the address, which people send to each other; a reload still has it.
export function keepToken() {
  const place = new URLSearchParams(location.hash.slice(1));
  if (!place.has("token")) return;
  setToken(place.get("token"));
  place.delete("token");
  history.replaceState(null, "", `#${place}`);
}

export function setToken(token) {
  sessionStorage.setItem(PLACE, token.trim());
}

// Asks the server; an answer that is no success is an error with the server's own sentence.
export async function ask(path, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${sessionStorage.getItem(PLACE) || ""}` };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch {
    throw new Error("The server of this page does not answer. It ends with its dljob up, and the next one prints another address.");
  }
  if (answer.ok || answer.status === 304) return answer;
  const told = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(told.error || `The server answers with status ${answer.status}.`), { status: answer.status });
}

// Asks for the record again and again while the page is in sight, and tells what came of it.
export class Following {
  constructor(tell) {
    this.tell = tell;
    this.tag = "";
    document.addEventListener("visibilitychange", () => this.look());
  }

  async look() {
    clearTimeout(this.timer);
    if (document.hidden || this.isAsking) return;
    this.isAsking = true;
    try {
      const answer = await ask("/api/v1/page", { headers: this.tag ? { "If-None-Match": this.tag } : {} });
      const later = answer.status === 304 ? null : take(await answer.json());
      this.tag = answer.headers.get("ETag") || "";
      this.tell({ problem: null, later, at: Date.now() });
    } catch (error) {
      this.tell({ problem: error.message, isRefused: error.status === 401 });
    }
    this.isAsking = false;
    this.timer = setTimeout(() => this.look(), EVERY_MS);
  }
}
