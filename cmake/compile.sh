#!/bin/sh
# Runs a compiler through ccache: compile.sh CCACHE COMPILER ARGUMENT...
# While gcc compiles a header, it reads the precompiled header that an earlier build left. ccache then counts that file as an input
# and finds no earlier result, so it is removed first.
for argument; do
  case $argument in *.gch) rm -f "$argument" ;; esac
done
exec "$@"
