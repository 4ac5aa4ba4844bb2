/** \file
 * Functions that add custom operators to options.
 */
struct OrtStatus;
struct OrtApiBase;
struct OrtSessionOptions;

/** A function of a library of custom operators, which adds them to the options by calls of C. */
typedef struct OrtStatus* (*ORTCAPIRegisterCustomOpsFnPtr)(struct OrtSessionOptions* options,
                                                           const struct OrtApiBase* api);
