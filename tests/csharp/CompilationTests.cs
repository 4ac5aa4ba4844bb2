using System.IO;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>Models that are compiled ahead of a session, and sessions whose creation is canceled.</summary>
[TestFixture]
public class CompilationTests
{
    private string folder;

    [SetUp]
    public void MakeFolder()
    {
        folder = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
        Directory.CreateDirectory(folder);
    }

    [TearDown]
    public void RemoveFolder()
    {
        Directory.Delete(folder, true);
    }

    [Test]
    public void ACompiledModelComputesTheSame()
    {
        string source = Path.Combine(folder, "model.onnx"), target = Path.Combine(folder, "compiled.onnx");
        File.WriteAllBytes(source, Onnx.Affine());
        using (var session = new SessionOptions())
        using (var options = new OrtModelCompilationOptions(session))
        {
            Assert.That(
                Assert.Throws<OnnxRuntimeException>(() => options.CompileModel()).ErrorCode,
                Is.EqualTo(ErrorCode.InvalidArgument));
            options.SetInputModelPath(source);
            options.SetOutputModelPath(target);
            options.SetEpContextEmbedMode(true);
            options.CompileModel();
            Assert.That(Run(target), Is.EqualTo(new float[] { 16, 26 }));
            options.SetFlags(OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS);
            Assert.Throws<OnnxRuntimeException>(() => options.CompileModel());
            options.SetFlags(OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED);
            Assert.Throws<OnnxRuntimeException>(() => options.CompileModel());
        }
    }

    [Test]
    public void AModelInMemoryIsReadWhereItIs()
    {
        string target = Path.Combine(folder, "compiled.onnx");
        using (var session = new SessionOptions())
        using (var options = new OrtModelCompilationOptions(session))
        {
            Assert.Throws<OnnxRuntimeException>(() => options.SetInputModelFromBuffer(new byte[0]));
            options.SetInputModelFromBuffer(new byte[] { 1 });
            options.SetInputModelFromBuffer(Onnx.Affine());
            System.GC.Collect();
            options.SetOutputModelPath(target);
            options.SetOutputModelExternalInitializersFile("weights.bin", 0);
            options.CompileModel();
        }
        Assert.That(new FileInfo(Path.Combine(folder, "weights.bin")).Length, Is.GreaterThanOrEqualTo(4 * 8));
        Assert.That(Run(target), Is.EqualTo(new float[] { 16, 26 }));
    }

    [Test]
    public void TheCreationOfASessionIsCanceled()
    {
        using (var options = new SessionOptions())
        {
            options.SetLoadCancellationFlag(true);
            var error = Assert.Throws<OnnxRuntimeException>(() => new InferenceSession(Onnx.Affine(), options));
            Assert.That(error.ErrorCode, Is.EqualTo(ErrorCode.ModelLoadCanceled));
            options.SetLoadCancellationFlag(false);
            new InferenceSession(Onnx.Affine(), options).Dispose();
        }
    }

    private static float[] Run(string path)
    {
        var x = new DenseTensor<float>(new float[] { 1, 2, 3 }, new[] { 1, 3 });
        using (var session = new InferenceSession(path))
        using (var outputs = session.Run(new[] { NamedOnnxValue.CreateFromTensor("x", x) }))
        {
            return outputs.Single().AsTensor<float>().ToArray();
        }
    }
}
