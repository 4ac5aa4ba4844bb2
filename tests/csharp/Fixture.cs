using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Text;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

/// <summary>A recorded run: its artifacts, batches and recorded values, as written by prepare.py.</summary>
public sealed class Fixture
{
    private readonly string folder;
    private readonly Dictionary<string, float[]> numbers;

    public Fixture(string name)
    {
        folder = Path.Combine(Root, name);
        numbers = File.ReadAllLines(Path.Combine(folder, "expected.txt"))
            .Select(line => line.Split(' '))
            .ToDictionary(words => words[0], words => words.Skip(1).Select(Number).ToArray());
    }

    /// <summary>The recorded runs by name.</summary>
    public static string[] Names =>
        Directory.GetDirectories(Root).Select(Path.GetFileName).OrderBy(name => name).ToArray();

    public string Checkpoint => PathOf("checkpoint");

    public string TrainModel => PathOf("training_model.onnx");

    public string EvalModel => PathOf("eval_model.onnx");

    public string OptimizerModel => PathOf("optimizer_model.onnx");

    private static string Root =>
        Environment.GetEnvironmentVariable("ORTRAIN_TEST_DATA") ??
        throw new InvalidOperationException("ORTRAIN_TEST_DATA is not set, expected the folder that prepare.py wrote");

    /// <summary>A new folder for the files that a test writes.</summary>
    public static string NewFolder()
    {
        string path = Path.Combine(Path.GetTempPath(), "ortrain-" + Guid.NewGuid().ToString("N"));
        Directory.CreateDirectory(path);
        return path;
    }

    public string PathOf(string file)
    {
        return Path.Combine(folder, file);
    }

    public float[] Numbers(string name)
    {
        return numbers[name];
    }

    public CheckpointState LoadState()
    {
        return CheckpointState.LoadCheckpoint(Checkpoint);
    }

    public TrainingSession MakeSession(CheckpointState state)
    {
        return new TrainingSession(state, TrainModel, EvalModel, OptimizerModel);
    }

    /// <summary>The batch of a step as values over new arrays.</summary>
    public List<OrtValue> Values(int step)
    {
        return new List<OrtValue> { Read("x" + step, new ToValue()), Read("y" + step, new ToValue()) };
    }

    /// <summary>The batch of a step as fixed buffers over new arrays.</summary>
    public List<FixedBufferOnnxValue> Buffers(int step)
    {
        return Buffers(step.ToString(CultureInfo.InvariantCulture));
    }

    /// <summary>One sample as fixed buffers over new arrays.</summary>
    public List<FixedBufferOnnxValue> OneSample()
    {
        return Buffers("_one");
    }

    /// <summary>A batch of floats as a tensor.</summary>
    public DenseTensor<float> Inputs(int step)
    {
        return (DenseTensor<float>)Read("x" + step, new ToTensor());
    }

    /// <summary>The labels of a batch as a tensor.</summary>
    public DenseTensor<long> Labels(int step)
    {
        return (DenseTensor<long>)Read("y" + step, new ToTensor());
    }

    private List<FixedBufferOnnxValue> Buffers(string batch)
    {
        return new List<FixedBufferOnnxValue> { Read("x" + batch, new ToBuffer()), Read("y" + batch, new ToBuffer()) };
    }

    private static float Number(string text)
    {
        return (float)double.Parse(text, CultureInfo.InvariantCulture);
    }

    private TResult Read<TResult>(string name, Maker<TResult> maker)
    {
        byte[] content = File.ReadAllBytes(PathOf(name));
        int end = Array.IndexOf(content, (byte)'\n');
        string[] header = Encoding.ASCII.GetString(content, 0, end).Split(' ');
        long[] shape = header[1] == "-" ? new long[0] : header[1].Split('x').Select(long.Parse).ToArray();
        byte[] bytes = content.Skip(end + 1).ToArray();
        switch (header[0])
        {
            case "float": return Make<float, TResult>(bytes, 4, shape, maker);
            case "int64": return Make<long, TResult>(bytes, 8, shape, maker);
            default: throw new InvalidDataException(name + " is of type " + header[0]);
        }
    }

    private static TResult Make<T, TResult>(byte[] bytes, int size, long[] shape, Maker<TResult> maker)
        where T : struct
    {
        var elements = new T[bytes.Length / size];
        Buffer.BlockCopy(bytes, 0, elements, 0, bytes.Length);
        return maker.Make(elements, shape);
    }

    private abstract class Maker<TResult>
    {
        public abstract TResult Make<T>(T[] elements, long[] shape)
            where T : struct;

        protected static DenseTensor<T> Tensor<T>(T[] elements, long[] shape)
        {
            return new DenseTensor<T>(elements, shape.Select(dim => (int)dim).ToArray());
        }
    }

    private sealed class ToValue : Maker<OrtValue>
    {
        public override OrtValue Make<T>(T[] elements, long[] shape)
        {
            return OrtValue.CreateTensorValueFromMemory(elements, shape);
        }
    }

    private sealed class ToBuffer : Maker<FixedBufferOnnxValue>
    {
        public override FixedBufferOnnxValue Make<T>(T[] elements, long[] shape)
        {
            return FixedBufferOnnxValue.CreateFromTensor(Tensor(elements, shape));
        }
    }

    private sealed class ToTensor : Maker<object>
    {
        public override object Make<T>(T[] elements, long[] shape)
        {
            return Tensor(elements, shape);
        }
    }
}
