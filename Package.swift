// swift-tools-version: 6.0
import PackageDescription

// The archives of a release, which `scripts/swift_package.py release` writes: where they are, and their checksums. A checkout has
// none: on Linux it takes the library that pkg-config finds, on a Mac the xcframework that `scripts/xcframework.sh` makes.
typealias Archive = (url: String, checksum: String)
let appleArchive: Archive? = nil
let linuxArchive: Archive? = nil

#if canImport(Darwin)
  let archive = appleArchive
  let local = Target.binaryTarget(name: "COrtrain", path: "build/ortrain.xcframework")
#else
  let archive = linuxArchive
  let local = Target.systemLibrary(name: "COrtrain", path: "bindings/swift/Sources/COrtrain", pkgConfig: "ortrain")
#endif
let core = archive.map { Target.binaryTarget(name: "COrtrain", url: $0.url, checksum: $0.checksum) } ?? local

let package = Package(
  name: "ortrain",
  platforms: [.iOS(.v15), .macOS(.v12)],
  products: [
    // The name that programs import since the package for CocoaPods.
    .library(name: "onnxruntime_training_objc", targets: ["onnxruntime_training_objc"])
  ],
  targets: [
    core,
    .target(
      name: "onnxruntime_training_objc",
      dependencies: ["COrtrain"],
      path: "bindings/swift/Sources/onnxruntime_training_objc",
      // The library in the xcframework is static; its C++ library is that of the system.
      linkerSettings: [.linkedLibrary("c++", .when(platforms: [.iOS, .macOS]))]),
    .testTarget(
      name: "OrtrainTests",
      dependencies: ["onnxruntime_training_objc"],
      path: "tests/swift/OrtrainTests"),
    .testTarget(
      name: "OrtrainXCTests",
      dependencies: ["onnxruntime_training_objc"],
      path: "tests/swift/OrtrainXCTests"),
  ]
)
