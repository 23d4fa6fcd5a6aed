// Runs Python in a thread of its own: Pyodide, in npm's files on a public CDN, each checked by its hash.
const VERSION = "0.28.3";
const FROM = `https://cdn.jsdelivr.net/npm/pyodide@${VERSION}/`;
const PACKAGES = `https://cdn.jsdelivr.net/pyodide/v${VERSION}/full/`; // with the hashes of pyodide-lock.json
const HASHES = {
  "pyodide.js": "sha384-4X7gSPzQ4pHfjTE5aBEPJAQcHu55sciq+NWO3OUOZ3zHSJhn4te9CBjUyRSr+nei",
  "pyodide.asm.js": "sha384-r0/vSQNahhZUJBO7ne5kqeNO4O9xSg658nGR6cGiQtzyIYSOfY9J8JUwOUdUMEkd",
  "pyodide.asm.wasm": "sha384-nfuXSg0f8YmFmBVMelAoom75Yji4r0iU2RrxMHYAa+AIt0JGdHWbau1imflLNNEu",
  "python_stdlib.zip": "sha384-3iWptIFECvk1VbDttuo8ZRZG8fk0MaHphrxgsJg6Rl40GnKqRLPRRuA7h+648E5D",
  "pyodide-lock.json": "sha384-kW8BHvD8flyCLy52v2Ca0t5mO5oCeKABys/zXNtKhH8+Mgxf/rnKFeksLsjy0y5Y",
};
const TYPES = { ".js": "text/javascript", ".wasm": "application/wasm" };
const checked = new Map(); // address: the file, as it was when its hash was right
const fetchAnything = self.fetch.bind(self), importAnything = self.importScripts.bind(self);

self.fetch = async (address, options) => {
  const held = checked.get(String(address.url ?? address));
  return held ? new Response(held, { headers: { "content-type": held.type } }) : fetchAnything(address, options);
};
self.importScripts = (...addresses) => {
  const local = (address) => (checked.has(address) ? URL.createObjectURL(checked.get(address)) : address);
  importAnything(...addresses.map(local));
};

async function start() {
  postMessage({ progress: "Loading Python (about 13 MB, once) ..." });
  await Promise.all(Object.entries(HASHES).map(async ([name, integrity]) => {
    const answer = await fetchAnything(FROM + name, { integrity, mode: "cors", credentials: "omit" });
    if (!answer.ok) throw new Error(`${FROM}${name}: ${answer.status}`);
    const type = TYPES[name.slice(name.lastIndexOf("."))] ?? "application/octet-stream";
    checked.set(FROM + name, new Blob([await answer.arrayBuffer()], { type }));
  }));
  self.importScripts(`${FROM}pyodide.js`);
  const python = await self.loadPyodide({ indexURL: FROM, packageBaseUrl: PACKAGES });
  const pack = await fetchAnything("practice.zip");
  python.unpackArchive(await pack.arrayBuffer(), "zip", { extractDir: "/practice" });
  python.runPython("import sys; sys.path.insert(0, '/practice'); import browser");
  return python;
}

let python = null;

self.onmessage = async ({ data: { id, source } }) => {
  try {
    python ??= start();
    const ready = await python;
    if (id === "arena") await ready.loadPackage(["numpy", "pyyaml"]);
    postMessage({ progress: "Checking ..." });
    const browser = ready.pyimport("browser");
    postMessage({ result: id === "arena" ? browser.arena(source) : browser.check(id, source) });
  } catch (error) {
    postMessage({ error: `It did not work: ${error.message ?? error}` });
  }
};
