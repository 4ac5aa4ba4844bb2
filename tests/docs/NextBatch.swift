// Gives the Swift examples of the pages their batches: sixteen rows of images.bin and labels.bin at a time, five passes
// over the data.
import Foundation

private func elements<Element: BitwiseCopyable>(_ file: String, _: Element.Type) -> [Element] {
  FileManager.default.contents(atPath: file)!.withUnsafeBytes { Array($0.bindMemory(to: Element.self)) }
}

private let images = elements("images.bin", Float.self)
private let labels = elements("labels.bin", Int64.self)
private let batches = labels.count / 16
nonisolated(unsafe) private var next = 0

func nextBatch() -> (images: [Float], labels: [Int64])? {
  if next == 5 * batches { return nil }
  let batch = next % batches
  next += 1
  return (Array(images[(batch * 1024)..<((batch + 1) * 1024)]), Array(labels[(batch * 16)..<((batch + 1) * 16)]))
}
