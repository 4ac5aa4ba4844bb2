// swift-tools-version: 6.0
import PackageDescription

// The C library: on Linux where pkg-config finds it, on Apple's systems an xcframework with the same headers and module map.
#if canImport(Darwin)
  let core = Target.binaryTarget(name: "COrtrain", path: "build/ortrain.xcframework")
#else
  let core = Target.systemLibrary(name: "COrtrain", path: "bindings/swift/Sources/COrtrain", pkgConfig: "ortrain")
#endif

let package = Package(
  name: "ortrain",
  platforms: [.iOS(.v13), .macOS(.v11)],
  products: [
    // The name that programs import since the package for CocoaPods.
    .library(name: "onnxruntime_training_objc", targets: ["onnxruntime_training_objc"])
  ],
  targets: [
    core,
    .target(
      name: "onnxruntime_training_objc",
      dependencies: ["COrtrain"],
      path: "bindings/swift/Sources/onnxruntime_training_objc"),
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
