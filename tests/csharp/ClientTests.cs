using System;
using System.Collections;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading.Tasks;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>Members that programs for onnxruntime use beside training: strings, sequences, bindings, metadata, types
/// and settings.</summary>
[TestFixture]
public class ClientTests
{
    // y = x w + b with w of ones [3, 2] and b an initializer that a run may replace; bytes of an ONNX file.
    private static byte[] Affine => Onnx.Affine();

    private static readonly float[] X = { 1, 2, 3 };

    [Test]
    public void StringsGoInAndOut()
    {
        using (OrtValue value = OrtValue.CreateTensorWithEmptyStrings(OrtAllocator.DefaultInstance, new long[] { 2, 2 }))
        {
            Assert.That(value.GetStringTensorAsArray(), Is.EqualTo(new[] { "", "", "", "" }));
            value.StringTensorSetElementAt("grün".AsSpan(), 0);
            value.StringTensorSetElementAt("b".AsMemory(), 1);
            value.StringTensorSetElementAt(new ReadOnlySpan<byte>(Encoding.UTF8.GetBytes("π")), 2);
            Assert.That(value.GetStringTensorAsArray(), Is.EqualTo(new[] { "grün", "b", "π", "" }));
            Assert.That(value.GetStringElement(0), Is.EqualTo("grün"));
            Assert.That(value.GetStringElementAsMemory(2).ToString(), Is.EqualTo("π"));
            Assert.That(value.GetStringElementAsSpan(2).ToArray(), Is.EqualTo(new byte[] { 0xCF, 0x80 }));
            Assert.Throws<OnnxRuntimeException>(() => value.GetStringElement(4));
            Assert.Throws<OnnxRuntimeException>(() => value.GetTensorDataAsSpan<float>());
        }
        var columns = new DenseTensor<string>(new[] { "a", "b", "c", "d" }, new[] { 2, 2 }, true);
        using (OrtValue value = OrtValue.CreateFromStringTensor(columns))
        {
            Assert.That(value.GetStringTensorAsArray(), Is.EqualTo(new[] { "a", "c", "b", "d" }));
        }
        using (OrtValue numbers = OrtValue.CreateTensorValueFromMemory(X, new long[] { 3 }))
        {
            Assert.That(
                Assert.Throws<OnnxRuntimeException>(() => numbers.GetStringElement(0)).Message,
                Does_Contain("expected a tensor of strings, found Float[3]"));
        }
    }

    [Test]
    public void SequencesAreMadeVisitedAndDescribed()
    {
        var parts = new List<OrtValue>
        {
            OrtValue.CreateTensorValueFromMemory(new float[] { 1, 2 }, new long[] { 2 }),
            OrtValue.CreateTensorValueFromMemory(new float[] { 3 }, new long[] { 1 }),
        };
        Assert.Throws<OnnxRuntimeException>(() => OrtValue.CreateSequence(parts.AsReadOnly()));
        using (OrtValue sequence = OrtValue.CreateSequence(parts))
        {
            Assert.That(parts, Is.Empty);
            Assert.That(sequence.GetValueCount(), Is.EqualTo(2));
            var seen = new List<float[]>();
            sequence.ProcessSequence(
                (element, index) =>
                {
                    Assert.That(index, Is.EqualTo(seen.Count));
                    seen.Add(element.GetTensorDataAsSpan<float>().ToArray());
                },
                OrtAllocator.DefaultInstance);
            Assert.That(seen, Is.EqualTo(new[] { new float[] { 1, 2 }, new float[] { 3 } }));
            Assert.Throws<OnnxRuntimeException>(
                () => sequence.ProcessMap((keys, values) => { }, OrtAllocator.DefaultInstance));
            OrtTypeInfo type = sequence.GetTypeInfo();
            Assert.That(type.OnnxType, Is.EqualTo(OnnxValueType.ONNX_TYPE_SEQUENCE));
            OrtTypeInfo element1 = type.SequenceTypeInfo.ElementType;
            Assert.That(element1.TensorTypeAndShapeInfo.ElementDataType, Is.EqualTo(TensorElementType.Float));
            Assert.Throws<OnnxRuntimeException>(() => type.MapTypeInfo.ToString());
        }
    }

    [Test]
    public void BindingsRunWithoutCopies()
    {
        using (var session = new InferenceSession(Affine))
        using (OrtIoBinding binding = session.CreateIoBinding())
        using (var options = new RunOptions())
        {
            var x = (float[])X.Clone();
            var y = new float[2];
            using (OrtValue input = OrtValue.CreateTensorValueFromMemory(x, new long[] { 1, 3 }))
            using (FixedBufferOnnxValue output = FixedBufferOnnxValue.CreateFromTensor(
                new DenseTensor<float>(y, new[] { 1, 2 })))
            {
                binding.BindInput("x", input);
                binding.BindOutput("y", output);
                Assert.That(binding.GetOutputNames(), Is.EqualTo(new[] { "y" }));
                session.RunWithBinding(options, binding);
                Assert.That(y, Is.EqualTo(new float[] { 16, 26 }));
                x[0] = 11;
                session.RunWithBinding(options, binding);
                Assert.That(y, Is.EqualTo(new float[] { 26, 36 }));

                binding.ClearBoundOutputs();
                binding.BindOutputToDevice("y", OrtMemoryInfo.DefaultInstance);
                using (IDisposableReadOnlyCollection<OrtValue> values = session.RunWithBoundResults(options, binding))
                {
                    Assert.That(values.Single().GetTensorDataAsSpan<float>().ToArray(), Is.EqualTo(y));
                }
                using (var named = session.RunWithBindingAndNames(options, binding, new[] { "other" }))
                {
                    Assert.That(named.Single().Name, Is.EqualTo("other"));
                    Assert.That(named.Single().AsTensor<float>().ToArray(), Is.EqualTo(y));
                }
                Assert.Throws<ArgumentException>(() => session.RunWithBindingAndNames(options, binding, new string[2]));
                Assert.Throws<OnnxRuntimeException>(() => binding.BindInput("absent", input));
            }
        }
    }

    [Test]
    public unsafe void MemoryAtAnAddressIsBound()
    {
        using (var session = new InferenceSession(Affine))
        using (OrtIoBinding binding = session.CreateIoBinding())
        using (var options = new RunOptions())
        {
            float* x = stackalloc float[3];
            float* y = stackalloc float[2];
            x[0] = x[1] = x[2] = 1;
            OrtMemoryInfo cpu = OrtMemoryInfo.DefaultInstance;
            binding.BindInput("x", new OrtExternalAllocation(cpu, new long[] { 1, 3 }, TensorElementType.Float, (IntPtr)x, 12));
            binding.BindOutput("y", new OrtExternalAllocation(cpu, new long[] { 1, 2 }, TensorElementType.Float, (IntPtr)y, 8));
            session.RunWithBinding(options, binding);
            Assert.That(new[] { y[0], y[1] }, Is.EqualTo(new float[] { 13, 23 }));
            Assert.Throws<OnnxRuntimeException>(() => new OrtExternalAllocation(
                cpu, new long[] { 4 }, TensorElementType.Float, IntPtr.Zero, 12));
        }
    }

    [Test]
    public void EveryMixOfNamedTensorsAndBuffersRuns()
    {
        using (var session = new InferenceSession(Affine))
        using (var options = new RunOptions())
        {
            var x = new DenseTensor<float>(X, new[] { 1, 3 });
            var y = new DenseTensor<float>(new[] { 1, 2 });
            var inputs = new[] { NamedOnnxValue.CreateFromTensor("x", x) };
            var outputs = new[] { NamedOnnxValue.CreateFromTensor("y", y) };
            var names = new[] { "x" };
            using (FixedBufferOnnxValue input = FixedBufferOnnxValue.CreateFromTensor(x))
            using (FixedBufferOnnxValue output = FixedBufferOnnxValue.CreateFromTensor(y))
            {
                Action[] runs =
                {
                    () => session.Run(inputs, outputs),
                    () => session.Run(inputs, outputs, options),
                    () => session.Run(inputs, new[] { "y" }, new[] { output }),
                    () => session.Run(inputs, new[] { "y" }, new[] { output }, options),
                    () => session.Run(names, new[] { input }, outputs),
                    () => session.Run(names, new[] { input }, outputs, options),
                };
                foreach (Action run in runs)
                {
                    y.Fill(0);
                    run();
                    Assert.That(y.ToArray(), Is.EqualTo(new float[] { 16, 26 }));
                }
            }
        }
    }

    [Test]
    public void ARunInTheBackgroundFillsTheOutputs()
    {
        using (var session = new InferenceSession(Affine))
        using (var options = new RunOptions())
        using (OrtValue x = OrtValue.CreateTensorValueFromMemory(X, new long[] { 1, 3 }))
        using (OrtValue y = OrtValue.CreateTensorValueFromMemory(new float[2], new long[] { 1, 2 }))
        {
            Task<IReadOnlyCollection<OrtValue>> run = session.RunAsync(options, new[] { "x" }, new[] { x }, new[] { "y" }, new[] { y });
            Assert.That(run.Result.Single().GetTensorDataAsSpan<float>().ToArray(), Is.EqualTo(new float[] { 16, 26 }));
            Task failed = session.RunAsync(options, new[] { "z" }, new[] { x }, new[] { "y" }, new[] { y });
            var error = Assert.Throws<AggregateException>(() => failed.Wait());
            Assert.That(error.InnerException, Is.InstanceOf<OnnxRuntimeException>());
        }
    }

    [Test]
    public void AModelStatesWhatItIs()
    {
        using (var container = new PrePackedWeightsContainer())
        using (var session = new InferenceSession(Affine, container))
        {
            ModelMetadata model = session.ModelMetadata;
            Assert.That(model.ProducerName, Is.EqualTo("a test"));
            Assert.That(model.GraphName, Is.EqualTo("affine"));
            Assert.That(model.Domain, Is.EqualTo("org.example"));
            Assert.That(model.Description, Is.EqualTo("of the model"));
            Assert.That(model.GraphDescription, Is.EqualTo("of the graph"));
            Assert.That(model.Version, Is.EqualTo(7));
            Assert.That(model.CustomMetadataMap, Is.EquivalentTo(new Dictionary<string, string> { { "key", "ä" } }));
            Assert.That(session.OverridableInitializerMetadata["b"].Dimensions, Is.EqualTo(new[] { 2 }));
        }
    }

    [Test]
    public void OptionsReachTheSession()
    {
        using (var options = new SessionOptions())
        using (OrtValue b = OrtValue.CreateTensorValueFromMemory(new float[] { 0, 0 }, new long[] { 2 }))
        {
            Assert.That(options.EnableProfiling, Is.False);
            options.AddInitializer("b", b);
            options.AddFreeDimensionOverrideByName("batch", 1);
            string folder = System.IO.Path.Combine(System.IO.Path.GetTempPath(), System.IO.Path.GetRandomFileName());
            System.IO.Directory.CreateDirectory(folder);
            options.ProfileOutputPathPrefix = System.IO.Path.Combine(folder, "profile");
            options.EnableProfiling = true;
            using (var session = new InferenceSession(Affine, options))
            {
                Assert.That(session.InputMetadata["x"].Dimensions, Is.EqualTo(new[] { 1, 3 }));
                Assert.That(session.ProfilingStartTimeNs, Is.GreaterThan(0));
                using (var outputs = session.Run(new[] { NamedOnnxValue.CreateFromTensor("x", new DenseTensor<float>(X, new[] { 1, 3 })) }))
                {
                    Assert.That(outputs.Single().AsTensor<float>().ToArray(), Is.EqualTo(new float[] { 6, 6 }));
                }
                string file = session.EndProfiling();
                Assert.That(file, Does_Contain("profile"));
                Assert.That(System.IO.File.Exists(file));
            }
            System.IO.Directory.Delete(folder, true);
        }
    }

    [Test]
    public void ProvidersThatDoNotExistSaySo()
    {
        using (var options = new SessionOptions())
        {
            Action[] requests =
            {
                () => options.AppendExecutionProvider_CUDA(), () => options.AppendExecutionProvider_DML(),
                () => options.AppendExecutionProvider_Dnnl(), () => options.AppendExecutionProvider_MIGraphX(),
                () => options.AppendExecutionProvider_Nnapi(), () => options.AppendExecutionProvider_OpenVINO(),
                () => options.AppendExecutionProvider_ROCm(), () => options.AppendExecutionProvider_Tensorrt(),
                () => options.AppendExecutionProvider_CoreML(),
                () => SessionOptions.MakeSessionOptionWithCudaProvider(),
                () => SessionOptions.MakeSessionOptionWithRocmProvider(),
                () => SessionOptions.MakeSessionOptionWithTensorrtProvider(),
            };
            foreach (Action request in requests)
            {
                var error = Assert.Throws<OnnxRuntimeException>(() => request());
                Assert.That(error.Message, Does_Contain("CPUExecutionProvider"));
            }
        }
        var settings = new Dictionary<string, string>();
        ProviderOptionsValueHelper.StringToDict("device_id=0;name=x", settings);
        Assert.That(settings, Is.EquivalentTo(new Dictionary<string, string> { { "device_id", "0" }, { "name", "x" } }));
        Assert.Throws<ArgumentException>(() => ProviderOptionsValueHelper.StringToDict("device_id", settings));
    }

    [Test]
    public void ConfigurationsAreAppliedByName()
    {
        SessionOptionsContainer.Reset();
        SessionOptionsContainer.Register(options => options.LogId = "default");
        SessionOptionsContainer.Register("fast", options => options.IntraOpNumThreads = 3);
        using (SessionOptions plain = SessionOptionsContainer.Create())
        using (SessionOptions fast = SessionOptionsContainer.Create("fast"))
        using (SessionOptions other = SessionOptionsContainer.Create("other"))
        {
            Assert.That(plain.LogId, Is.EqualTo("default"));
            Assert.That(fast.IntraOpNumThreads, Is.EqualTo(3));
            Assert.That(other.LogId, Is.EqualTo("default"));
        }
        Assert.Throws<KeyNotFoundException>(() => SessionOptionsContainer.Create("other", false));
        SessionOptionsContainer.Reset();
    }

    [Test]
    public void PairsAreKeptByKey()
    {
        using (var pairs = new OrtKeyValuePairs(new Dictionary<string, string> { { "a", "1" } }))
        {
            pairs.Add("b", "2");
            pairs.Add("a", "3");
            pairs.Remove("b");
            Assert.That(pairs.Entries, Is.EquivalentTo(new Dictionary<string, string> { { "a", "3" } }));
            pairs.Refresh();
            Assert.That(pairs.Entries, Is.EquivalentTo(new Dictionary<string, string> { { "a", "3" } }));
            Assert.Throws<ArgumentException>(() => pairs.Add("", "x"));
        }
    }

    [Test]
    public void ThreadingOptionsTakeEverySetting()
    {
        using (var threads = new OrtThreadingOptions())
        {
            threads.GlobalIntraOpNumThreads = 2;
            threads.GlobalInterOpNumThreads = 1;
            threads.GlobalSpinControl = false;
            threads.SetGlobalDenormalAsZero();
            Assert.That(threads.IsInvalid, Is.False);
        }
    }

    [Test]
    public void TensorsHaveDiagonalsAndTriangles()
    {
        var matrix = new float[,] { { 1, 2, 3 }, { 4, 5, 6 } }.ToTensor();
        Assert.That(matrix.GetDiagonal().ToArray(), Is.EqualTo(new float[] { 1, 5 }));
        Assert.That(matrix.GetDiagonal(1).ToArray(), Is.EqualTo(new float[] { 2, 6 }));
        Assert.That(matrix.GetDiagonal(-1).ToArray(), Is.EqualTo(new float[] { 4 }));
        Assert.Throws<ArgumentException>(() => matrix.GetDiagonal(3));
        Assert.That(matrix.GetTriangle().ToArray(), Is.EqualTo(new float[] { 1, 0, 0, 4, 5, 0 }));
        Assert.That(matrix.GetTriangle(1).ToArray(), Is.EqualTo(new float[] { 1, 2, 0, 4, 5, 6 }));
        Assert.That(matrix.GetUpperTriangle().ToArray(), Is.EqualTo(new float[] { 1, 2, 3, 0, 5, 6 }));
        Assert.That(Tensor.CreateIdentity<float>(2).ToArray(), Is.EqualTo(new float[] { 1, 0, 0, 1 }));
        Assert.That(Tensor.CreateIdentity<Float16>(1)[0, 0], Is.EqualTo(Float16.One));
        Assert.Throws<NotSupportedException>(() => Tensor.CreateIdentity<string>(2));
        Tensor<float> shifted = Tensor.CreateFromDiagonal(new float[] { 7, 8 }.ToTensor(), 1);
        Assert.That(shifted.ToArray(), Is.EqualTo(new float[] { 0, 7, 0, 0, 0, 8, 0, 0, 0 }));
    }

    [Test]
    public void TensorsAreCollectionsOfFixedSize()
    {
        var tensor = new float[,] { { 1, 2 }, { 3, 4 } }.ToTensor();
        var list = (IList)tensor;
        Assert.That(list.IsFixedSize && !list.IsReadOnly && !list.IsSynchronized && list.Count == 4);
        Assert.That(list.Contains(3f) && !list.Contains("3") && list.IndexOf(4f) == 3);
        list[0] = 9f;
        Assert.That(tensor[0, 0], Is.EqualTo(9));
        Assert.Throws<ArgumentException>(() => list[0] = "text");
        Assert.Throws<InvalidOperationException>(() => list.Add(1f));
        Assert.Throws<InvalidOperationException>(() => list.Insert(0, 1f));
        Assert.Throws<InvalidOperationException>(() => list.Remove(9f));
        Assert.Throws<InvalidOperationException>(() => list.RemoveAt(0));
        var objects = new object[5];
        list.CopyTo(objects, 1);
        Assert.That(objects, Is.EqualTo(new object[] { null, 9f, 2f, 3f, 4f }));
        var same = new float[,] { { 9, 2 }, { 3, 4 } };
        Assert.That(Tensor<float>.Equals(tensor, same.ToTensor(true)));
        Assert.That(((IStructuralEquatable)tensor).Equals(same, EqualityComparer<float>.Default));
        Assert.That(Tensor<float>.Compare(tensor, new float[,] { { 9, 2 }, { 3, 5 } }.ToTensor()), Is.LessThan(0));
        Assert.Throws<ArgumentException>(() => Tensor<float>.Equals(tensor, X.ToTensor()));
        list.Clear();
        Assert.That(tensor.ToArray(), Is.All.EqualTo(0f));
    }

    [Test]
    public void ShapesAndTypesAreDescribed()
    {
        Assert.That(ShapeUtils.GetSizeForShape(new long[] { 2, 3, 4 }), Is.EqualTo(24));
        Assert.That(ShapeUtils.GetStrides(new long[] { 2, 3, 4 }), Is.EqualTo(new long[] { 12, 4, 1 }));
        Assert.That(ShapeUtils.GetIndex(new long[] { 12, 4, 1 }, new long[] { 1, 2, 3 }), Is.EqualTo(23));
        Assert.That(ShapeUtils.GetIndex(new long[] { 12, 4, 1 }, new long[] { 1, 2, 3 }, 1), Is.EqualTo(11));
        Assert.Throws<ArgumentOutOfRangeException>(() => ShapeUtils.GetSizeForShape(new long[] { 2, -1 }));
        TensorTypeInfo half = TensorBase.GetTypeInfo(typeof(Float16));
        Assert.That(half.ElementType == TensorElementType.Float16 && half.TypeSize == 2 && !half.IsString);
        TensorElementTypeInfo text = TensorBase.GetElementTypeInfo(TensorElementType.String);
        Assert.That(text.TensorType == typeof(string) && text.IsString);
        Assert.That(new DenseTensor<long>(3).GetTypeInfo().ElementType, Is.EqualTo(TensorElementType.Int64));
        Assert.That(TensorBase.GetTypeInfo(typeof(decimal)), Is.Null);
    }

    [Test]
    public void HalfNumbersAreClassified()
    {
        var cases = new[] { 0f, -0f, 1f, -2.5f, 65504f, float.NaN, float.PositiveInfinity, float.NegativeInfinity };
        foreach (float number in cases)
        {
            var half = (Float16)number;
            Assert.That(Float16.IsFinite(half), Is.EqualTo(!float.IsNaN(number) && !float.IsInfinity(number)));
            Assert.That(Float16.IsInfinity(half), Is.EqualTo(float.IsInfinity(number)));
            Assert.That(Float16.IsPositiveInfinity(half), Is.EqualTo(float.IsPositiveInfinity(number)));
            Assert.That(Float16.IsNegativeInfinity(half), Is.EqualTo(float.IsNegativeInfinity(number)));
            Assert.That(Float16.IsNaNOrZero(half), Is.EqualTo(float.IsNaN(number) || number == 0));
            Assert.That(Float16.IsNormal(half), Is.EqualTo(number != 0 && !float.IsNaN(number) && !float.IsInfinity(number)));
            Assert.That((float)Float16.Negate(half), Is.EqualTo(-number));
            Assert.That(half <= Float16.One, Is.EqualTo(number <= 1));
            Assert.That(half >= Float16.One, Is.EqualTo(number >= 1));
        }
        Assert.That(Float16.IsSubnormal(Float16.Epsilon) && !Float16.IsNormal(Float16.Epsilon));
        Assert.That(Float16.IsNegative(Float16.NegativeZero) && !Float16.IsNegative(Float16.Zero));
        Assert.That((float)Float16.Pi, Is.EqualTo(3.14f).Within(1e-3));
        Assert.That((float)BFloat16.Pi, Is.EqualTo(3.14f).Within(1e-2));
        Assert.That(BFloat16.IsSubnormal(BFloat16.Epsilon) && BFloat16.IsInfinity(BFloat16.NegativeInfinity));
        Assert.That((float)BFloat16.Negate(BFloat16.One), Is.EqualTo(-1));
    }

    private static NUnit.Framework.Constraints.Constraint Does_Contain(string text)
    {
        return new NUnit.Framework.Constraints.SubstringConstraint(text);
    }
}

/// <summary>Models as bytes, written out field by field.</summary>
internal static class Onnx
{
    /// <summary>y = x w + b, where a run may replace b, with all metadata.</summary>
    internal static byte[] Affine()
    {
        byte[] node = Join(Text(1, "x"), Text(1, "w"), Text(1, "b"), Text(2, "y"), Text(4, "Gemm"));
        byte[] graph = Join(
            Message(1, node), Text(2, "affine"), Message(5, Floats("w", new[] { 3, 2 }, 1, 1, 1, 1, 1, 1)),
            Message(5, Floats("b", new[] { 2 }, 10, 20)), Text(10, "of the graph"), Message(11, Tensor("x", null, 3)),
            Message(11, Tensor("b", 2)), Message(12, Tensor("y", null, 2)));
        byte[] entry = Join(Text(1, "key"), Text(2, "ä"));
        return Join(
            Number(1, 8), Text(2, "a test"), Text(4, "org.example"), Number(5, 7), Text(6, "of the model"),
            Message(7, graph), Message(8, Number(2, 17)), Message(14, entry));
    }

    private static byte[] Floats(string name, int[] shape, params float[] values)
    {
        var data = new byte[4 * values.Length];
        Buffer.BlockCopy(values, 0, data, 0, data.Length);
        return Join(shape.Select(dim => Number(1, dim)).Concat(new[] { Number(2, 1), Text(8, name), Message(9, data) }).ToArray());
    }

    private static byte[] Tensor(string name, params int?[] shape)
    {
        IEnumerable<byte[]> dims = shape.Select(dim => Message(1, dim.HasValue ? Number(1, dim.Value) : Text(2, "batch")));
        byte[] tensor = Join(Number(1, 1), Message(2, Join(dims.ToArray())));
        return Join(Text(1, name), Message(2, Message(1, tensor)));
    }

    private static byte[] Text(int field, string text)
    {
        return Message(field, Encoding.UTF8.GetBytes(text));
    }

    private static byte[] Message(int field, byte[] content)
    {
        return Join(Varint(field << 3 | 2), Varint(content.Length), content);
    }

    private static byte[] Number(int field, int value)
    {
        return Join(Varint(field << 3), Varint(value));
    }

    private static byte[] Varint(int value)
    {
        var bytes = new List<byte>();
        for (; value >= 0x80; value >>= 7)
        {
            bytes.Add((byte)(value | 0x80));
        }
        bytes.Add((byte)value);
        return bytes.ToArray();
    }

    private static byte[] Join(params byte[][] parts)
    {
        return parts.SelectMany(part => part).ToArray();
    }
}
