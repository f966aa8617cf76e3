// Runs the trace processor of ui.perfetto.dev in Node: it is WebAssembly, in the folder that is named, with a
// worker around it. Requests come in on the standard input and replies go out, as Perfetto's
// trace_processor.proto has them. What a worker has and Node has not is given to it here.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const read = (name) => fs.readFileSync(path.join(folder, path.basename(String(name))));

class XMLHttpRequest {
  open(_method, name) {
    this.name = name;
  }
  send() {
    const content = read(this.name);
    this.status = 200;
    this.response = content.buffer.slice(content.byteOffset, content.byteOffset + content.length);
  }
}

const quiet = (...words) => console.error(...words);
const worker = {
  console: { log: quiet, warn: quiet, error: quiet },
  // Of this realm, because the WebAssembly that is given is of it and its errors are told by their type.
  ArrayBuffer, Error, TypeError, Uint8Array, WebAssembly,
  Response, TextDecoder, TextEncoder, URL, crypto: globalThis.crypto, performance,
  clearTimeout, setTimeout, XMLHttpRequest,
  fetch: async (name) => new Response(read(name), { headers: { "Content-Type": "application/wasm" } }),
  location: { href: "http://localhost/engine_bundle.js" },
  importScripts() {},
  WorkerGlobalScope: function WorkerGlobalScope() {},
};
worker.self = worker;
worker.globalThis = worker;

const port = { postMessage: (reply) => process.stdout.write(Buffer.from(reply)) };
const request = fs.readFileSync(0);
vm.createContext(worker);
vm.runInContext(read("engine_bundle.js").toString(), worker);
worker.onmessage({ data: port });
// The worker has compiled the module when it returns; what it then still does comes before the next timer.
setTimeout(() => port.onmessage({ data: new Uint8Array(request) }), 0);
