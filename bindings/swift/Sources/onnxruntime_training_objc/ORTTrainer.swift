import Foundation

/// Owns a training session that several tasks use in turn.
///
/// A session may be used by one thread at a time. A task gives up ownership of objects that it passes to the actor,
/// such as the session and the inputs of a step; the compiler rejects a later use.
public actor ORTTrainer {
  private let session: ORTTrainingSession

  /// Takes over a session.
  public init(_ session: sending ORTTrainingSession) {
    self.session = session
  }

  /// Calls a function with the session, which no other task uses meanwhile. The result of the function belongs to the
  /// caller.
  public func perform<Result>(_ body: @Sendable (ORTTrainingSession) throws -> sending Result) rethrows -> sending Result {
    try body(session)
  }

  /// Runs a train step, an optimizer step and, where there is a schedule, a scheduler step, and resets the gradients.
  ///
  /// - Parameters:
  ///   - inputs: The inputs, in the order of `getTrainInputNames()`.
  ///   - scheduled: Whether a schedule was registered.
  /// - Returns: The outputs of the training model; the loss comes first.
  public func step(_ inputs: sending [ORTValue], scheduled: Bool = false) throws -> sending [ORTValue] {
    nonisolated(unsafe) let outputs = try session.trainStep(withInputValues: inputs)
    try session.optimizerStep()
    if scheduled { try session.schedulerStep() }
    try session.lazyResetGrad()
    return outputs
  }
}
