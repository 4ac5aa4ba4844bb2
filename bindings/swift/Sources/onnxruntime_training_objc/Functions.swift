import COrtrain

/// Sets the process-wide random seed.
public func ORTSetSeed(_ seed: Int64) {
  // Every number is a valid seed, so the call cannot fail.
  Tables.general.pointee.ReleaseStatus(Tables.training.pointee.SetSeed(seed))
}

/// The version of the library.
public func ORTVersion() -> String {
  textCopying(OrtGetApiBase().pointee.GetVersionString())
}

// An environment has no state that a program can change.
extension ORTEnv: @unchecked Sendable {}
