"""What differs between operating systems for files, memory, the processor and output. Each system has its module.

The functions do what those of the core do (``core/src/runtime/system.h``), with the same locks: the core and this package
recognize each other's temporary files.

- ``open_to_read(path)`` opens a file of any kind for reading, without waiting for the writer of a pipe.
- ``create_locked(path)`` creates a file, opens it for reading and writing, and locks it until it is closed. It returns None if
  another process is about to remove the new file, and raises FileExistsError if there is a file of this name.
- ``remove_unlocked(path)`` removes a regular file unless a process has locked it.
- ``set_mode(file, mode)`` gives a file its permissions; on Windows, it has those of its folder.
- ``replace(path, target)`` gives a file another name in the same folder, and replaces a file of that name.
- ``CAN_REPLACE_MAPPED_FILES`` tells whether ``replace`` works while a process maps the file of that name.
- ``sync_folder(folder)`` makes new names in a folder durable, where the file system can.
- ``memory_in_use()`` returns the bytes of memory that the process has, None if the system does not say.
- ``processor_features()`` returns the instruction sets of the processor that the system can tell, with Linux' names.
- ``use_utf8_in_pipes()`` lets a program write UTF-8 to files and pipes as standard output; terminals have their encoding.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from ortrain._files import system_windows as system
else:
    from ortrain._files import system_posix as system

__all__ = ["system"]
