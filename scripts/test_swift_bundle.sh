#!/usr/bin/env bash
# Releases the Swift package on this machine, and trains with a program that depends on the release. A local https server provides the
# artifact bundle at the address in Package.swift; this script creates its certificate, which only Swift's package manager trusts.
# Usage: scripts/test_swift_bundle.sh PYTHON BUNDLE FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD python=$(realpath -s "$1") bundle=$(realpath "$2") folder=$3
rm -rf "$folder"
mkdir -p "$folder"/{served,release/bindings,release/tests,program/Sources/Train}
cd "$folder"
folder=$PWD
swift package experimental-audit-binary-artifact "$bundle"
"$python" "$root/scripts/swift_package.py" zip "$bundle" served/ortrain.zip

openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out certificate.pem -days 2 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost 2>/dev/null
"$python" - <<'END' >port 2>serving.log &
import functools, http.server, ssl
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="served")
server = http.server.HTTPServer(("localhost", 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("certificate.pem", "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
END
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do
  if [ -s port ]; then break; fi
  sleep 0.1
done

cp "$root/Package.swift" release
cp -r "$root/bindings/swift" release/bindings
cp -r "$root/tests/swift" release/tests
address=https://localhost:$(cat port)/ortrain.zip
(cd release && "$python" "$root/scripts/swift_package.py" release linux ../served/ortrain.zip "$address")

cat >program/Package.swift <<'END'
// swift-tools-version: 6.0
import PackageDescription

let package = Package(
  name: "Train",
  dependencies: [.package(path: "../release")],
  targets: [
    .executableTarget(name: "Train", dependencies: [.product(name: "onnxruntime_training_objc", package: "release")])
  ])
END
# The program of the docs, and the batches that it reads.
awk '/^```swift test/ {on = 1; next} /^```/ {on = 0} on' "$root/docs/other-languages.md" >program/Sources/Train/Train.swift
cat >>program/Sources/Train/Train.swift <<'END'
nonisolated(unsafe) var left = 20
func nextBatch() -> (images: [Float], labels: [Int64])? {
  left -= 1
  return left < 0 ? nil : ((0..<1024).map { Float($0 % 7) / 7 }, (0..<16).map { Int64($0 % 10) })
}
END
certificates=/etc/ssl/certs/ca-certificates.crt
HOME=$folder/home unshare --map-root-user --mount bash -c "mount --bind $folder/certificate.pem $certificates &&
  cd program && swift build -c release -j ${CMAKE_BUILD_PARALLEL_LEVEL:-1}"

"$python" - "$root/tests/data/fixtures/mlp_adamw/model.onnx" <<'END'
import sys
from ortrain import artifacts
weights = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
artifacts.generate_artifacts(sys.argv[1], requires_grad=weights, loss=artifacts.LossType.CrossEntropyLoss,
                             optimizer=artifacts.OptimType.AdamW, artifact_directory="artifacts")
END
env -u LD_LIBRARY_PATH program/.build/release/Train | tee losses
# Check the training: 20 losses, the last one below the first one, and the files that the program writes.
awk '/^loss / {if (!n++) first = $2; last = $2} END {exit !(n == 20 && last < first)}' losses
ls -l trained.onnx trained.ckpt
