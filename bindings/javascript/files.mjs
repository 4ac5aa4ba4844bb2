// The calls of WASI for a page: a clock, random numbers, and files in memory, all in one folder. Calls that are left out return
// the error "not supported".

const kBadDescriptor = 8, kExists = 20, kInvalid = 28, kIsFolder = 31, kNoEntry = 44, kNoFolder = 54, kNotSupported = 52;
const kFolder = 3, kRegular = 4;
const kRoot = 3; // the descriptor of the folder
const kAllRights = 0x1fffffffn;

// Files in memory, by name.
export class Files {
  constructor(report = (text) => console.error(text)) {
    this.contents = new Map();
    this.open = new Map();
    this.next = kRoot + 1;
    this.report = report;
    this.line = "";
    this.memory = null;
  }

  read(name) {
    const file = this.contents.get(name);
    if (file === undefined) throw new Error(`there is no file "${name}"`);
    return file.bytes.slice(0, file.size);
  }

  write(name, bytes) {
    this.contents.set(name, { bytes: Uint8Array.from(bytes), size: bytes.length });
  }

  remove(name) {
    this.contents.delete(name);
  }

  // The imports that a module needs, with its memory once it has been made.
  imports(module) {
    const wasi = this.calls();
    const needed = WebAssembly.Module.imports(module).filter((one) => one.module === "wasi_snapshot_preview1");
    return Object.fromEntries(needed.map(({ name }) => [name, wasi[name] ?? (() => kNotSupported)]));
  }

  view() {
    return new DataView(this.memory.buffer);
  }

  bytes(at, length) {
    return new Uint8Array(this.memory.buffer, at, length);
  }

  name(at, length) {
    const path = new TextDecoder().decode(this.bytes(at, length).slice());
    return path.replace(/^(\.?\/)+/, "").replace(/^\.$/, "");
  }

  // Calls `f` for each piece of memory of a list of them, until it handles less than all of one. Returns the sum.
  pieces(list, count, f) {
    const view = this.view();
    let total = 0;
    for (let i = 0; i < count; ++i) {
      const length = view.getUint32(list + 8 * i + 4, true);
      const done = f(this.bytes(view.getUint32(list + 8 * i, true), length));
      total += done;
      if (done < length) break;
    }
    return total;
  }

  copy(file, position, list, count) {
    return this.pieces(list, count, (to) => {
      const part = file.bytes.subarray(position, Math.min(file.size, position + to.length));
      to.set(part);
      position += part.length;
      return part.length;
    });
  }

  append(opened, list, count) {
    const { file } = opened;
    return this.pieces(list, count, (from) => {
      const end = opened.position + from.length;
      if (end > file.bytes.length) {
        const larger = new Uint8Array(Math.max(end, 2 * file.bytes.length));
        larger.set(file.bytes.subarray(0, file.size));
        file.bytes = larger;
      }
      file.bytes.set(from, opened.position);
      opened.position = end;
      file.size = Math.max(file.size, end);
      return from.length;
    });
  }

  print(list, count) {
    return this.pieces(list, count, (from) => {
      const lines = (this.line + new TextDecoder().decode(from.slice())).split("\n");
      this.line = lines.pop();
      for (const line of lines) this.report(line);
      return from.length;
    });
  }

  describe(at, kind, size) {
    const view = this.view();
    this.bytes(at, 64).fill(0);
    view.setUint8(at + 16, kind);
    view.setBigUint64(at + 24, 1n, true); // names
    view.setBigUint64(at + 32, BigInt(size), true);
    return 0;
  }

  openFile(name, create, exclusive, truncate, result) {
    let file = this.contents.get(name);
    if (name === "") return this.put(result, kRoot);
    if (file !== undefined && create && exclusive) return kExists;
    if (file === undefined) {
      if (!create) return kNoEntry;
      if (name.includes("/")) return kNoEntry;
      file = { bytes: new Uint8Array(0), size: 0 };
      this.contents.set(name, file);
    }
    if (truncate) file.size = 0;
    const descriptor = this.next++;
    this.open.set(descriptor, { file, position: 0 });
    return this.put(result, descriptor);
  }

  put(at, value) {
    this.view().setUint32(at, value, true);
    return 0;
  }

  // Runs `f` with an open file.
  with(descriptor, f) {
    const opened = this.open.get(descriptor);
    return opened === undefined ? kBadDescriptor : f(opened);
  }

  list(buffer, length, cookie, result) {
    const names = [...this.contents.keys()];
    let at = 0;
    for (let i = Number(cookie); i < names.length && at < length; ++i) {
      const name = new TextEncoder().encode(names[i]);
      const entry = new Uint8Array(24 + name.length);
      const view = new DataView(entry.buffer);
      view.setBigUint64(0, BigInt(i + 1), true);
      view.setUint32(16, name.length, true);
      view.setUint8(20, kRegular);
      entry.set(name, 24);
      const part = entry.subarray(0, length - at);
      this.bytes(buffer + at, part.length).set(part);
      at += part.length;
    }
    return this.put(result, at);
  }

  calls() {
    return { ...this.systemCalls(), ...this.descriptorCalls(), ...this.pathCalls() };
  }

  systemCalls() {
    return {
      args_get: () => 0,
      args_sizes_get: (count, bytes) => this.put(count, 0) || this.put(bytes, 0),
      environ_get: () => 0,
      environ_sizes_get: (count, bytes) => this.put(count, 0) || this.put(bytes, 0),
      sched_yield: () => 0,
      clock_time_get: (clock, precision, at) => {
        const milliseconds = clock === 0 ? Date.now() : performance.now();
        this.view().setBigUint64(at, BigInt(Math.round(milliseconds * 1e6)), true);
        return 0;
      },
      clock_res_get: (clock, at) => {
        this.view().setBigUint64(at, 1000n, true);
        return 0;
      },
      random_get: (at, length) => {
        for (let done = 0; done < length; done += 65536) // what one call gives
          crypto.getRandomValues(this.bytes(at + done, Math.min(65536, length - done)));
        return 0;
      },
      proc_exit: (code) => {
        throw new Error(`the module ended the process with code ${code}: ${this.line}`);
      },
    };
  }

  descriptorCalls() {
    return {
      fd_prestat_get: (fd, at) => {
        if (fd !== kRoot) return kBadDescriptor;
        return this.put(at, 0) || this.put(at + 4, 1);
      },
      fd_prestat_dir_name: (fd, at) => {
        this.bytes(at, 1).set([47]); // "/"
        return 0;
      },
      fd_fdstat_get: (fd, at) => {
        if (fd > kRoot && !this.open.has(fd)) return kBadDescriptor;
        this.bytes(at, 24).fill(0);
        const view = this.view();
        view.setUint8(at, fd === kRoot ? kFolder : fd < kRoot ? 2 : kRegular);
        view.setBigUint64(at + 8, kAllRights, true);
        view.setBigUint64(at + 16, kAllRights, true);
        return 0;
      },
      fd_fdstat_set_flags: () => 0,
      fd_filestat_get: (fd, at) =>
        fd === kRoot
          ? this.describe(at, kFolder, 0)
          : this.with(fd, ({ file }) => this.describe(at, kRegular, file.size)),
      fd_close: (fd) => (this.open.delete(fd) ? 0 : fd <= kRoot ? 0 : kBadDescriptor),
      fd_sync: () => 0,
      fd_datasync: () => 0,
      fd_read: (fd, list, count, result) =>
        this.with(fd, (opened) => {
          const n = this.copy(opened.file, opened.position, list, count);
          opened.position += n;
          return this.put(result, n);
        }),
      fd_pread: (fd, list, count, offset, result) =>
        this.with(fd, ({ file }) => this.put(result, this.copy(file, Number(offset), list, count))),
      fd_write: (fd, list, count, result) =>
        fd < kRoot
          ? this.put(result, this.print(list, count))
          : this.with(fd, (opened) => this.put(result, this.append(opened, list, count))),
      fd_seek: (fd, offset, whence, result) =>
        this.with(fd, (opened) => {
          const to = Number(offset) + [0, opened.position, opened.file.size][whence];
          if (!(to >= 0)) return kInvalid;
          opened.position = to;
          this.view().setBigUint64(result, BigInt(to), true);
          return 0;
        }),
      fd_readdir: (fd, buffer, length, cookie, result) =>
        fd === kRoot ? this.list(buffer, length, cookie, result) : kNoFolder,
    };
  }

  pathCalls() {
    return {
      path_open: (fd, lookup, path, length, flags, rights, inheriting, fdFlags, result) =>
        this.openFile(this.name(path, length), flags & 1, flags & 4, flags & 8, result),
      path_filestat_get: (fd, flags, path, length, at) => {
        const name = this.name(path, length), file = this.contents.get(name);
        if (name === "") return this.describe(at, kFolder, 0);
        return file === undefined ? kNoEntry : this.describe(at, kRegular, file.size);
      },
      path_unlink_file: (fd, path, length) => (this.contents.delete(this.name(path, length)) ? 0 : kNoEntry),
      path_rename: (fd, path, length, toFd, toPath, toLength) => {
        const from = this.name(path, length), to = this.name(toPath, toLength), file = this.contents.get(from);
        if (file === undefined) return kNoEntry;
        if (to === "") return kIsFolder;
        this.contents.delete(from);
        this.contents.set(to, file);
        return 0;
      },
    };
  }
}
