/** \file
 * Attributes of methods in the headers.
 */
#import <Foundation/Foundation.h>

/** A method that must not be called. GNUstep has NS_UNAVAILABLE without its meaning. */
#ifdef GNUSTEP
#define ORT_UNAVAILABLE __attribute__((unavailable))
#else
#define ORT_UNAVAILABLE NS_UNAVAILABLE
#endif

/**
 * Marks a method whose failure only the error shows: it returns a number or a Boolean, or reads a property.
 * Swift imports it as a throwing method with the same result; a text is optional in Swift.
 */
#if defined(__has_attribute)
#if __has_attribute(swift_error)
#define ORT_FAILS_BY_ERROR __attribute__((swift_error(nonnull_error)))
#endif
#endif
#ifndef ORT_FAILS_BY_ERROR
#define ORT_FAILS_BY_ERROR
#endif

/** Sets the Swift name of a method, if it is not the one that Swift derives itself. */
#if defined(__has_attribute)
#if __has_attribute(swift_name)
#define ORT_SWIFT_NAME(name) __attribute__((swift_name(#name)))
#endif
#endif
#ifndef ORT_SWIFT_NAME
#define ORT_SWIFT_NAME(name)
#endif
