import COrtrain
import Foundation

/// The tables of the C library.
enum Tables {
  nonisolated(unsafe) static let general: UnsafePointer<OrtApi> = table(
    OrtGetApiBase().pointee.GetApi(UInt32(ORT_API_VERSION)), "OrtApi", ORT_API_VERSION)

  nonisolated(unsafe) static let training: UnsafePointer<OrtTrainingApi> = table(
    general.pointee.GetTrainingApi(UInt32(ORT_API_VERSION)), "OrtTrainingApi", ORT_API_VERSION)

  nonisolated(unsafe) static let `extension`: UnsafePointer<OrtrainApi> = table(
    OrtrainGetApi(UInt32(ORTRAIN_API_VERSION)), "OrtrainApi", ORTRAIN_API_VERSION)

  /// The allocator of the CPU. There is one, and getting it cannot fail.
  nonisolated(unsafe) static let allocator: UnsafeMutablePointer<OrtAllocator> = {
    var found: UnsafeMutablePointer<OrtAllocator>?
    general.pointee.ReleaseStatus(general.pointee.GetAllocatorWithDefaultOptions(&found))
    return found!
  }()

  private static func table<T>(_ found: UnsafePointer<T>?, _ name: String, _ version: Int32) -> UnsafePointer<T> {
    guard let found else {
      fatalError(
        "the C library has no table \(name) of version \(version); it is older than the headers that the Swift package was "
          + "compiled with")
    }
    return found
  }
}
