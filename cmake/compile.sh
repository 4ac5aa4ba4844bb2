#!/bin/sh
# Runs a compiler through ccache: compile.sh CCACHE COMPILER ARGUMENT...
# gcc reads a precompiled header that an earlier build left while it makes the new one, so ccache would take its bytes for a
# source and never find what it has. Such a file is removed first.
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
exec "$@"
