# For a private repository of specs: CocoaPods' own takes no new versions from 2 December 2026 on, and new programs use Package.swift.
# Stands at the root of a release archive, which holds the sources and libortrain for the Apple platforms; its paths are
# from there. Two variables give the addresses of the archive and of the project's page when it is published.
Pod::Spec.new do |spec|
  spec.name = 'ortrain-training-objc'
  spec.version = '0.1.0'
  spec.summary = 'Training of ONNX models on the device that runs them.'
  spec.description = 'The training API of onnxruntime for Objective-C and Swift, with another training core: the same ' \
                     'classes, artifacts and checkpoints.'
  spec.license = { :type => 'MIT', :file => 'LICENSE' }
  spec.authors = 'The ortrain authors'
  spec.homepage = ENV.fetch('ORTRAIN_HOMEPAGE', "file://#{__dir__}")
  spec.source = { :http => ENV.fetch('ORTRAIN_ARCHIVE', "file://#{__dir__}/ortrain-#{spec.version}-apple.zip") }

  spec.ios.deployment_target = '15.0'
  spec.osx.deployment_target = '12.0'

  # Programs import the names that they know: <onnxruntime_training_objc/onnxruntime_training.h>, and in Swift
  # onnxruntime_training_objc.
  spec.module_name = 'onnxruntime_training_objc'
  spec.requires_arc = true
  spec.source_files = 'bindings/objc/include/**/*.h', 'bindings/objc/src/**/*.{h,m}', 'core/include/*_c_api.h'
  spec.public_header_files = 'bindings/objc/include/**/*.h'
  spec.private_header_files = 'bindings/objc/src/**/*.h', 'core/include/*_c_api.h'

  spec.vendored_frameworks = 'ortrain.xcframework'
  spec.preserve_paths = 'licenses/*.txt'
  spec.libraries = 'c++'
  spec.frameworks = 'Foundation'
end
