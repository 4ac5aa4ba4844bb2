using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>A forward session returns what the eval step of the session that exported its model returned.</summary>
[TestFixture]
public class InferenceTests
{
    private readonly Fixture fixture = new Fixture("mlp_adamw");
    private string folder;
    private string model;
    private string loss;
    private string[] inputs;
    private float expected;

    [TestFixtureSetUp]
    public void Export()
    {
        folder = Fixture.NewFolder();
        model = Path.Combine(folder, "model.onnx");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            loss = session.OutputNames(false)[0];
            inputs = session.InputNames(false).ToArray();
            session.ExportModelForInferencing(model, new[] { loss });
            using (var outputs = session.EvalStep(fixture.Values(0)))
            {
                expected = outputs[0].GetTensorDataAsSpan<float>()[0];
            }
        }
    }

    [TestFixtureTearDown]
    public void Remove()
    {
        Directory.Delete(folder, true);
    }

    [Test]
    public void EveryOverloadOfARunGivesTheSame()
    {
        var named = new List<NamedOnnxValue>
        {
            NamedOnnxValue.CreateFromTensor(inputs[0], fixture.Inputs(0)),
            NamedOnnxValue.CreateFromTensor(inputs[1], fixture.Labels(0)),
        };
        List<OrtValue> values = fixture.Values(0);
        Dictionary<string, OrtValue> byName = inputs.Zip(values, (name, value) => new { name, value })
            .ToDictionary(pair => pair.name, pair => pair.value);
        string[] wanted = { loss };
        using (var session = new InferenceSession(model))
        using (var options = new RunOptions())
        {
            foreach (var outputs in new[]
            {
                session.Run(named), session.Run(named, wanted), session.Run(named, wanted, options),
                session.Run(inputs, fixture.Buffers(0)), session.Run(inputs, fixture.Buffers(0), wanted),
                session.Run(inputs, fixture.Buffers(0), wanted, options),
            })
            {
                using (outputs)
                {
                    Assert.That(outputs.Count, Is.EqualTo(1));
                    Assert.That(outputs.First().Name, Is.EqualTo(loss));
                    Assert.That(outputs.First().AsTensor<float>().ToArray(), Is.EqualTo(new[] { expected }));
                }
            }
            foreach (var outputs in new[]
            {
                session.Run(null, inputs, values, wanted), session.Run(options, inputs, values, wanted),
                session.Run(options, byName, wanted),
            })
            {
                using (outputs)
                {
                    Assert.That(outputs[0].GetTensorDataAsSpan<float>()[0], Is.EqualTo(expected));
                }
            }
            var room = new float[1];
            using (OrtValue output = OrtValue.CreateTensorValueFromMemory(room, new long[0]))
            {
                session.Run(null, inputs, values, wanted, new[] { output });
                Assert.That(room[0], Is.EqualTo(expected));
            }
            foreach (RunOptions some in new[] { null, options })
            {
                var buffer = new DenseTensor<float>(new int[0]);
                using (FixedBufferOnnxValue output = FixedBufferOnnxValue.CreateFromTensor(buffer))
                {
                    if (some == null)
                    {
                        session.Run(inputs, fixture.Buffers(0), wanted, new[] { output });
                    }
                    else
                    {
                        session.Run(inputs, fixture.Buffers(0), wanted, new[] { output }, some);
                    }
                    Assert.That(buffer.ToArray(), Is.EqualTo(new[] { expected }));
                }
            }
        }
    }

    [Test]
    public void AModelMayComeFromMemoryAndWithOptions()
    {
        byte[] bytes = File.ReadAllBytes(model);
        using (var options = new SessionOptions { IntraOpNumThreads = 1 })
        using (var first = new InferenceSession(bytes))
        using (var second = new InferenceSession(bytes, options))
        using (var third = new InferenceSession(model, options))
        {
            foreach (InferenceSession session in new[] { first, second, third })
            {
                using (var outputs = session.Run(null, inputs, fixture.Values(0), new[] { loss }))
                {
                    Assert.That(outputs[0].GetTensorDataAsSpan<float>()[0], Is.EqualTo(expected).Within(1e-5));
                }
            }
        }
    }

    [Test]
    public void TheModelSaysWhatItTakesAndGives()
    {
        using (var session = new InferenceSession(model))
        {
            Assert.That(session.InputNames, Is.EqualTo(inputs));
            Assert.That(session.OutputNames, Is.EqualTo(new[] { loss }));
            NodeMetadata images = session.InputMetadata[inputs[0]];
            DenseTensor<float> batch = fixture.Inputs(0);
            Assert.That(images.IsTensor);
            Assert.That(images.OnnxValueType, Is.EqualTo(OnnxValueType.ONNX_TYPE_TENSOR));
            Assert.That(images.ElementDataType, Is.EqualTo(TensorElementType.Float));
            Assert.That(images.ElementType, Is.EqualTo(typeof(float)));
            Assert.That(images.IsString, Is.False);
            Assert.That(images.Dimensions, Is.EqualTo(new[] { -1, batch.Dimensions[1] }));
            Assert.That(images.SymbolicDimensions.Length, Is.EqualTo(2));
            Assert.That(images.SymbolicDimensions[0], Is.Not.Empty);
            Assert.That(images.SymbolicDimensions[1], Is.Empty);
            Assert.That(session.InputMetadata[inputs[1]].ElementType, Is.EqualTo(typeof(long)));
            Assert.That(session.OutputMetadata[loss].ElementDataType, Is.EqualTo(TensorElementType.Float));
        }
    }

    [Test]
    public void WrongRunsSayWhatIsWrong()
    {
        using (var session = new InferenceSession(model))
        {
            List<OrtValue> values = fixture.Values(0);
            Refuses(() => session.Run(null, new[] { inputs[0], "other" }, values, new[] { loss }), "other", inputs[1]);
            Refuses(() => session.Run(null, inputs, values, new[] { "nothing" }), "nothing", loss);
            Refuses(() => session.Run(null, inputs.Reverse().ToArray(), values, new[] { loss }), "expected");
            Refuses(() => session.Run(null, inputs.Take(1).ToArray(), values.Take(1).ToArray(), new[] { loss }), inputs[1]);
            using (OrtValue wrong = OrtValue.CreateTensorValueFromMemory(new float[2], new long[] { 2 }))
            {
                Refuses(() => session.Run(null, inputs, values, new[] { loss }, new[] { wrong }), loss, "float32[2]");
            }
            Assert.Throws<ArgumentException>(() => session.Run(null, inputs, values.Take(1).ToArray(), new[] { loss }));
            Assert.Throws<ArgumentException>(() => session.Run(null, inputs, values, new[] { loss }, new OrtValue[0]));
            Assert.Throws<ArgumentNullException>(() => session.Run((IReadOnlyCollection<NamedOnnxValue>)null));
            Assert.Throws<ArgumentNullException>(() => session.Run(new NamedOnnxValue[] { null }));
            Assert.Throws<ArgumentNullException>(() => session.Run(null, null, values, new[] { loss }));
            Assert.Throws<ArgumentNullException>(() => session.Run(null, inputs, values, null));
        }
    }

    [Test]
    public void GradientsAreThereWithoutATrainingSession()
    {
        string path = Path.Combine(folder, "gradients.onnx");
        using (var builder = GradientGraphBuilder.Create(
            File.ReadAllBytes(model), new[] { loss }, new[] { inputs[0] }, loss))
        {
            Assert.Throws<OnnxRuntimeException>(() => builder.GetModel());
            builder.Build();
            builder.Save(path);
            Assert.That(builder.GetModel(), Is.EqualTo(File.ReadAllBytes(path)));
        }
        string gradient = inputs[0] + "_grad";
        DenseTensor<float> images = fixture.Inputs(0);
        using (var session = new InferenceSession(path))
        {
            Assert.That(session.OutputNames, Is.EqualTo(new[] { loss, gradient }));
            using (var outputs = session.Run(null, inputs, fixture.Values(0), new[] { loss, gradient }))
            {
                Assert.That(outputs[0].GetTensorDataAsSpan<float>()[0], Is.EqualTo(expected).Within(1e-5));
                Assert.That(outputs[1].GetTensorTypeAndShape().Shape, Is.EqualTo(images.Dimensions.ToArray()));
                float[] slope = outputs[1].GetTensorDataAsSpan<float>().ToArray();
                int steepest = Array.IndexOf(slope, slope.Max());
                const float step = 1e-2f;
                images.Buffer.Span[steepest] += step;
                using (var moved = session.Run(
                    new[]
                    {
                        NamedOnnxValue.CreateFromTensor(inputs[0], images),
                        NamedOnnxValue.CreateFromTensor(inputs[1], fixture.Labels(0)),
                    },
                    new[] { loss }))
                {
                    float rise = moved.First().AsTensor<float>().First() - expected;
                    Assert.That(rise, Is.EqualTo(step * slope[steepest]).Within(0.05 * step * slope[steepest]));
                }
            }
        }
        Assert.Throws<OnnxRuntimeException>(
            () => GradientGraphBuilder.Create(File.ReadAllBytes(model), new string[0], inputs, loss));
        Assert.Throws<ArgumentNullException>(() => GradientGraphBuilder.Create(null, inputs, inputs, loss));
    }

    [Test]
    public void ARunThatIsToldToEndEnds()
    {
        using (var session = new InferenceSession(model))
        using (var options = new RunOptions { Terminate = true })
        {
            Assert.Throws<OnnxRuntimeException>(() => session.Run(options, inputs, fixture.Values(0), new[] { loss }));
            options.Terminate = false;
            session.Run(options, inputs, fixture.Values(0), new[] { loss }).Dispose();
        }
    }

    [Test]
    public void ModelsThatCannotBeReadAreRefused()
    {
        var missing = Assert.Throws<OnnxRuntimeException>(() => new InferenceSession(Path.Combine(folder, "missing")));
        Assert.That(missing.ErrorCode, Is.EqualTo(ErrorCode.NoSuchFile));
        Assert.Throws<OnnxRuntimeException>(() => new InferenceSession(new byte[] { 1, 2, 3 }));
        Assert.Throws<ArgumentNullException>(() => new InferenceSession((string)null));
        Assert.Throws<ArgumentNullException>(() => new InferenceSession(model, (SessionOptions)null));
        var session = new InferenceSession(model);
        session.Dispose();
        session.Dispose();
        Assert.Throws<ObjectDisposedException>(() => session.Run(null, inputs, fixture.Values(0), new[] { loss }));
    }

    private static void Refuses(TestDelegate run, params string[] words)
    {
        var error = Assert.Throws<OnnxRuntimeException>(run);
        Assert.That(error.ErrorCode, Is.EqualTo(ErrorCode.InvalidArgument));
        foreach (string word in words)
        {
            Assert.That(error.Message, Is.StringContaining(word));
        }
    }
}
