// The sources compile with automatic reference counting and without; the differences are here.
#pragma once

#import <Foundation/Foundation.h>

#if defined(__has_feature)
#if __has_feature(objc_arc)
#define ORT_ARC 1
#endif
#endif

#ifdef ORT_ARC
#define ORT_RETAIN(object) (object)
#define ORT_RELEASE(object) ((void)(object))
#define ORT_AUTORELEASE(object) (object)
#define ORT_DEALLOC_SUPER() ((void)0)
#else
#define ORT_RETAIN(object) [(object) retain]
#define ORT_RELEASE(object) [(object) release]
#define ORT_AUTORELEASE(object) [(object) autorelease]
#define ORT_DEALLOC_SUPER() [super dealloc]
#endif
