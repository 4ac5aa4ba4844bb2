// Runs a program for WASI in Node.js, with the files of this machine: node run_wasi.mjs PROGRAM.wasm ARGUMENT...
// The program finds files by absolute paths alone: its C library has no current folder but "/".
import { readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { env, exit } from "node:process";
import { WASI } from "node:wasi";

const [program, ...rest] = process.argv.slice(2);
const wasi = new WASI({
  version: "preview1",
  args: [program, ...rest],
  env: { TMPDIR: tmpdir(), ...env },
  preopens: { "/": "/" },
});
const module = await WebAssembly.compile(await readFile(program));
exit(wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject())));
