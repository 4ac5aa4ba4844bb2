#import "ort_tables.h"

static void ORTRefuseLibrary(NSString *table, uint32_t version) {
  [NSException raise:NSInternalInconsistencyException
              format:@"the C library has no table %@ of version %u; it is older than the headers that the "
                     @"Objective-C library was compiled with",
                     table, version];
}

// The address of a table never changes, so it does not matter which thread stores it.
const OrtApi *ORTGeneralTable(void) {
  static const OrtApi *known;
  const OrtApi *table = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (table == NULL) {
    table = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (table == NULL) ORTRefuseLibrary(@"OrtApi", ORT_API_VERSION);
    __atomic_store_n(&known, table, __ATOMIC_RELEASE);
  }
  return table;
}

const OrtTrainingApi *ORTTrainingTable(void) {
  static const OrtTrainingApi *known;
  const OrtTrainingApi *table = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (table == NULL) {
    table = ORTGeneralTable()->GetTrainingApi(ORT_API_VERSION);
    if (table == NULL) ORTRefuseLibrary(@"OrtTrainingApi", ORT_API_VERSION);
    __atomic_store_n(&known, table, __ATOMIC_RELEASE);
  }
  return table;
}

const OrtrainApi *ORTExtensionTable(void) {
  static const OrtrainApi *known;
  const OrtrainApi *table = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (table == NULL) {
    table = OrtrainGetApi(ORTRAIN_API_VERSION);
    if (table == NULL) ORTRefuseLibrary(@"OrtrainApi", ORTRAIN_API_VERSION);
    __atomic_store_n(&known, table, __ATOMIC_RELEASE);
  }
  return table;
}

OrtAllocator *ORTAllocator(void) {
  OrtAllocator *allocator = NULL;
  // There is one allocator, and getting it cannot fail.
  ORTGeneralTable()->ReleaseStatus(ORTGeneralTable()->GetAllocatorWithDefaultOptions(&allocator));
  return allocator;
}
