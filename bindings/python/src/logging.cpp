// Log messages in Python: they go to standard error, or to a function of the program. ortrain/library.py is
// what callers see.

#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "support.h"

namespace ortrain::python {
namespace {

// The flag is read before the GIL is taken, so that a program without a function never waits for it. The
// mutex is for Python without the GIL. No Python code runs while it is locked.
std::mutex callback_mutex;
PyObject* callback = nullptr;
std::atomic<bool> has_callback = false;
thread_local bool is_in_callback = false;

void print(OrtLoggingLevel severity, const char* id, const char* place, const char* message) {
  static const char* const names[] = {"verbose", "info", "warning", "error", "fatal"};
  std::fprintf(stderr, "[%s] %s: %s: %s\n", names[severity], id, place, message);
}

// Takes the GIL. A thread that asks for it while the interpreter shuts down is stopped; see GilReleased.
PyGILState_STATE take_gil() {
  try {
    return PyGILState_Ensure();
  } catch (...) {
    stop_thread();
  }
}

py::object current_callback() {
  const std::lock_guard lock(callback_mutex);
  return py::reinterpret_borrow<py::object>(callback);
}

// Whether the callback took the message. Its exceptions are reported as Python reports exceptions that cannot
// be caught.
bool deliver(OrtLoggingLevel severity, const char* category, const char* id, const char* place,
             const char* message) {
  const py::object function = current_callback();  // it may replace itself
  if (!function) return false;
  try {
    const auto text = [](const char* from) {
      PyObject* made = PyUnicode_DecodeUTF8(from, static_cast<Py_ssize_t>(std::strlen(from)), "replace");
      if (made == nullptr) throw py::error_already_set();
      return py::reinterpret_steal<py::str>(made);
    };
    function(static_cast<int>(severity), text(category), text(id), text(place), text(message));
    return true;
  } catch (py::error_already_set& raised) {
    raised.restore();
    PyErr_WriteUnraisable(function.ptr());
    return false;
  }
}

void log(void*, OrtLoggingLevel severity, const char* category, const char* id, const char* place,
         const char* message) {
  // A thread that Python does not know, such as one of the pool, must not wait for the GIL: the thread that
  // has it may wait for the pool.
  bool is_delivered = false;
  if (has_callback && !is_in_callback && Py_IsInitialized() != 0 &&
      PyGILState_GetThisThreadState() != nullptr) {
    const PyGILState_STATE state = take_gil();
    // The message may come while an exception is on its way.
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    is_in_callback = true;
    is_delivered = deliver(severity, category, id, place, message);
    is_in_callback = false;
    PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
  }
  if (!is_delivered) print(severity, id, place, message);
}

void set_callback(const py::object& function) {
  PyObject* before = function.is_none() ? nullptr : function.inc_ref().ptr();
  {
    const std::lock_guard lock(callback_mutex);
    std::swap(before, callback);
    has_callback = callback != nullptr;
  }
  Py_XDECREF(before);
}

}  // namespace

OrtEnv* environment() {
  static OrtEnv* const env = [] {
    OrtEnv* made = nullptr;
    check(api().CreateEnvWithCustomLogger(log, nullptr, ORT_LOGGING_LEVEL_WARNING, "ortrain", &made));
    return made;
  }();
  return env;
}

void bind_logging(py::module_& module) {
  module.def(
      "set_log_severity",
      [](int severity) {
        check(api().UpdateEnvWithCustomLogLevel(environment(), static_cast<OrtLoggingLevel>(severity)));
      },
      py::arg("severity"), "Changes the minimum severity that is logged.");
  module.def("set_log_callback", &set_callback, py::arg("callback"),
             "Sends log messages to a function; None: to standard error.");
}

}  // namespace ortrain::python
