// A program that was compiled against onnxruntime's public members alone. Prints what it finds. Arguments: a folder of
// models and training artifacts, a library of custom operators.
using System;
using System.Buffers;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

internal static class Client
{
    private static string folder;

    private static int Main(string[] arguments)
    {
        folder = arguments[0];
        var library = arguments[1];
        Environments();
        Runs();
        Maps();
        Strings();
        CustomOperators(library);
        Bindings();
        Providers();
        Training();
        return 0;
    }

    private static string Model(string name)
    {
        return Path.Combine(folder, name + ".onnx");
    }

    private static void Say(string what, IEnumerable<float> numbers)
    {
        Console.WriteLine(what + ": " + string.Join(" ", numbers.Select(n => n.ToString("0.####"))));
    }

    private static void Fails(string what, Action action)
    {
        try
        {
            action();
            Console.WriteLine(what + ": no error");
        }
        catch (OnnxRuntimeException error)
        {
            Console.WriteLine(what + ": " + error.Message);
        }
    }

    private static void Environments()
    {
        using (var threads = new OrtThreadingOptions { GlobalIntraOpNumThreads = 1, GlobalSpinControl = false })
        {
            var options = new EnvironmentCreationOptions
            {
                logId = "client", logLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR, threadOptions = threads,
            };
            OrtEnv env = OrtEnv.CreateInstanceWithOptions(ref options);
            Console.WriteLine("created: " + OrtEnv.IsCreated + " " + env.EnvLogLevel);
            Console.WriteLine("providers: " + string.Join(" ", env.GetAvailableProviders()));
            env.CreateAndRegisterAllocator(OrtMemoryInfo.DefaultInstance, new OrtArenaCfg(0, -1, -1, -1));
        }
    }

    private static void Runs()
    {
        using (var options = new SessionOptions { GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_BASIC })
        using (var session = new InferenceSession(Model("affine"), options))
        using (var run = new RunOptions { LogId = "run" })
        {
            ModelMetadata model = session.ModelMetadata;
            Console.WriteLine("model: " + model.ProducerName + " " + model.Version + " " + model.CustomMetadataMap["key"]);
            NodeMetadata input = session.InputMetadata["x"];
            Console.WriteLine("input: " + input.ElementType.Name + " " + string.Join(",", input.Dimensions) + " " +
                string.Join(",", input.SymbolicDimensions) + " " + input.IsTensor + " " + input.ElementDataType);
            var x = new DenseTensor<float>(new Memory<float>(new float[] { 1, 2, 3 }), new[] { 1, 3 }, false);
            IReadOnlyCollection<NamedOnnxValue> named = new[] { NamedOnnxValue.CreateFromTensor("x", x) };
            using (IDisposableReadOnlyCollection<DisposableNamedOnnxValue> results = session.Run(named))
            {
                Tensor<float> y = results[0].AsTensor<float>();
                Say(results[0].Name, new[] { y[new[] { 0, 0 }], y[new[] { 0, 1 }] });
            }
            using (OrtValue value = OrtValue.CreateTensorValueFromMemory(new float[] { 4, 5, 6 }, new long[] { 1, 3 }))
            using (IDisposableReadOnlyCollection<OrtValue> results =
                session.Run(run, new Dictionary<string, OrtValue> { { "x", value } }, new[] { "y" }))
            {
                OrtTensorTypeAndShapeInfo info = results[0].GetTensorTypeAndShape();
                Console.WriteLine("shape: " + string.Join(",", info.Shape) + " " + info.ElementDataType + " " + info.ElementCount);
                Say("y", results[0].GetTensorDataAsSpan<float>().ToArray());
                IReadOnlyCollection<OrtValue> later = session.RunAsync(
                    run, new[] { "x" }, new[] { value }, new[] { "y" }, new[] { results[0] }).Result;
                Say("later", later.First().GetTensorDataAsSpan<float>().ToArray());
            }
            Fails("wrong input", () => session.Run(new[] { NamedOnnxValue.CreateFromTensor("z", x) }));
        }
        var half = (Float16)1.5f;
        Console.WriteLine("half: " + half.value + " " + (float)Float16.Negate(half) + " " + (half > Float16.One) + " " + Float16.IsNaN(Float16.NaN));
    }

    private static void Maps()
    {
        using (var session = new InferenceSession(Model("vectorize")))
        {
            MapMetadata map = session.InputMetadata["x"].AsMapMetadata();
            Console.WriteLine("map: " + map.KeyDataType + " " + map.ValueMetadata.ElementDataType + " " + map.ValueMetadata.OnnxValueType);
            var weights = new Dictionary<string, float> { { "pear", 3 }, { "fig", 2 } };
            using (IDisposableReadOnlyCollection<DisposableNamedOnnxValue> results =
                session.Run(new[] { NamedOnnxValue.CreateFromMap("x", weights) }))
            {
                Say("vectorized", results[0].AsTensor<float>().ToDenseTensor().Buffer.ToArray());
            }
        }
        using (var session = new InferenceSession(Model("zip")))
        {
            NodeMetadata output = session.OutputMetadata["y"];
            MapMetadata map = output.AsSequenceMetadata().ElementMeta.AsMapMetadata();
            Console.WriteLine("sequence of maps: " + map.KeyDataType + " " + map.ValueMetadata.ElementDataType);
            var x = new DenseTensor<float>(new Memory<float>(new[] { 0.5f, 0.25f }), new[] { 1, 2 }, false);
            using (IDisposableReadOnlyCollection<DisposableNamedOnnxValue> results =
                session.Run(new[] { NamedOnnxValue.CreateFromTensor("x", x) }))
            {
                IEnumerable<NamedOnnxValue> rows = results[0].AsEnumerable<NamedOnnxValue>();
                IDictionary<string, float> row = rows.First().AsDictionary<string, float>();
                Console.WriteLine("row: " + string.Join(" ", row.OrderBy(e => e.Key).Select(e => e.Key + "=" + e.Value)));
            }
        }
        using (OrtValue map = OrtValue.CreateMap(new long[] { 7 }, new float[] { 1.5f }))
        {
            OrtMapTypeInfo type = map.GetTypeInfo().MapTypeInfo;
            Console.WriteLine("type: " + type.KeyType + " " + type.ValueType.OnnxType);
            map.ProcessMap(
                (keys, values) => Say("visited " + keys.GetTensorDataAsSpan<long>()[0], values.GetTensorDataAsSpan<float>().ToArray()),
                OrtAllocator.DefaultInstance);
        }
    }

    private static void Strings()
    {
        using (OrtValue text = OrtValue.CreateTensorWithEmptyStrings(OrtAllocator.DefaultInstance, new long[] { 2 }))
        {
            text.StringTensorSetElementAt("a".AsSpan(), 0);
            text.StringTensorSetElementAt("bé".AsMemory(), 1);
            Console.WriteLine("strings: " + string.Join(" ", text.GetStringTensorAsArray()));
        }
    }

    private static void CustomOperators(string library)
    {
        using (var options = new SessionOptions())
        {
            options.RegisterCustomOpLibrary(library);
            RunScaled("registered", options);
        }
        using (var options = new SessionOptions())
        {
            IntPtr handle = IntPtr.Zero;
            options.RegisterCustomOpLibraryV2(library, ref handle);
            Console.WriteLine("handle: " + (handle != IntPtr.Zero));
            RunScaled("registered again", options);
        }
        using (var options = new SessionOptions())
        {
            Fails("no library", () => options.RegisterCustomOpLibrary("libabsent.so"));
            Fails("extensions", () => options.RegisterOrtExtensions());
            if (Environment.GetEnvironmentVariable("HAS_EXTENSIONS") == "1")
            {
                RunScaled("by extensions", options);
            }
        }
    }

    private static void RunScaled(string what, SessionOptions options)
    {
        using (var session = new InferenceSession(Model("scaled"), options))
        using (OrtValue value = OrtValue.CreateTensorValueFromMemory(new float[] { 1, 2 }, new long[] { 2 }))
        using (IDisposableReadOnlyCollection<OrtValue> results = session.Run(new RunOptions(), new[] { "x" }, new[] { value }, new[] { "y" }))
        {
            Say(what, results[0].GetTensorDataAsSpan<float>().ToArray());
        }
    }

    private static void Bindings()
    {
        using (var session = new InferenceSession(File.ReadAllBytes(Model("affine")), new PrePackedWeightsContainer()))
        using (var allocator = new OrtAllocator(session, new OrtMemoryInfo(OrtMemoryInfo.allocatorCPU, OrtAllocatorType.DeviceAllocator, 0, OrtMemType.Default)))
        using (OrtMemoryAllocation memory = allocator.Allocate(8))
        using (OrtIoBinding binding = session.CreateIoBinding())
        using (FixedBufferOnnxValue x = FixedBufferOnnxValue.CreateFromTensor(
            new DenseTensor<float>(new Memory<float>(new float[] { 1, 1, 1 }), new[] { 1, 3 }, false)))
        {
            Console.WriteLine("allocation: " + memory.Size + " " + memory.Info.Name + " " + memory.Info.Equals(allocator.Info));
            binding.BindInput("x", x);
            binding.BindOutput("y", TensorElementType.Float, new long[] { 1, 2 }, memory);
            binding.SynchronizeBoundInputs();
            using (IDisposableReadOnlyCollection<OrtValue> results = session.RunWithBoundResults(new RunOptions(), binding))
            {
                Say("bound " + binding.GetOutputNames()[0], results[0].GetTensorDataAsSpan<float>().ToArray());
            }
        }
    }

    private static void Providers()
    {
        OrtEpDevice device = OrtEnv.Instance().GetEpDevices()[0];
        Console.WriteLine("device: " + device.EpName + " " + device.HardwareDevice.Type + " " + device.EpOptions.Entries.Count);
        using (var options = new SessionOptions())
        {
            options.AppendExecutionProvider(OrtEnv.Instance(), new[] { device }, new Dictionary<string, string>());
            options.SetEpSelectionPolicy(ExecutionProviderDevicePolicy.PREFER_CPU);
            options.AppendExecutionProvider_CPU(1);
            Fails("CUDA", () => new OrtCUDAProviderOptions().UpdateOptions(new Dictionary<string, string>()));
            Fails("CUDA", () => options.AppendExecutionProvider_CUDA(0));
            Fails("Tensorrt", () => options.AppendExecutionProvider_Tensorrt(new OrtTensorRTProviderOptions()));
            Fails("ROCm", () => SessionOptions.MakeSessionOptionWithRocmProvider(new OrtROCMProviderOptions()));
            Fails("XNNPACK", () => options.AppendExecutionProvider("XNNPACK", new Dictionary<string, string>()));
        }
    }

    private static void Training()
    {
        TrainingUtils.SetSeed(3);
        string artifacts = Path.Combine(folder, "artifacts");
        using (CheckpointState state = CheckpointState.LoadCheckpoint(Path.Combine(artifacts, "checkpoint")))
        using (var session = new TrainingSession(
            state, Path.Combine(artifacts, "training_model.onnx"), Path.Combine(artifacts, "eval_model.onnx"),
            Path.Combine(artifacts, "optimizer_model.onnx")))
        using (OrtValue x = OrtValue.CreateTensorValueFromMemory(new float[] { 1, 2, 3 }, new long[] { 1, 3 }))
        using (OrtValue target = OrtValue.CreateTensorValueFromMemory(new float[2], new long[] { 1, 2 }))
        {
            Console.WriteLine("inputs: " + string.Join(" ", session.InputNames(true)));
            session.SetLearningRate(0.01f);
            for (int step = 0; step < 3; ++step)
            {
                using (IDisposableReadOnlyCollection<OrtValue> results = session.TrainStep(new[] { x, target }))
                {
                    Say("loss", results[0].GetTensorDataAsSpan<float>().ToArray());
                }
                session.OptimizerStep();
                session.LazyResetGrad();
            }
            state.AddProperty("epoch", 3L);
            Console.WriteLine("property: " + state.GetProperty("epoch"));
            CheckpointState.SaveCheckpoint(state, Path.Combine(folder, "saved"), true);
            session.ExportModelForInferencing(Path.Combine(folder, "exported.onnx"), new[] { "y" });
        }
    }
}
