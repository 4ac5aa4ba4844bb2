// A client of a federation without Python: trains with the C# classes on the rows of a file and exchanges its parameters in files.
//
//     Client.exe ARTIFACTS TRAIN TEST REQUEST REPLY
//
// TRAIN and TEST are files of rows: ulong rows, ulong elements of a row, float[rows * elements], long[rows] labels.
// docs/tutorial-federated.md describes REQUEST and REPLY. All numbers are little-endian.
using System;
using System.IO;
using System.Linq;
using System.Text;
using Microsoft.ML.OnnxRuntime;

/// <summary>A file that is not what it should be.</summary>
public sealed class Refused : Exception
{
    public Refused(string message) : base(message) { }
}

/// <summary>The rows of a client.</summary>
public sealed class Rows
{
    public Rows(string path)
    {
        using (var reader = new BinaryReader(File.OpenRead(path)))
        {
            long length = reader.BaseStream.Length;
            if (length < 16)
            {
                throw new Refused(path + ": expected a heading of 16 bytes, found " + length);
            }
            ulong count = reader.ReadUInt64(), size = reader.ReadUInt64();
            if (count < 1 || count > 1 << 30 || size < 1 || size > 1 << 30 || (ulong)length != 16 + count * (4 * size + 8))
            {
                throw new Refused($"{path}: expected the bytes of {count} rows of {size} elements, found {length}");
            }
            Count = (int)count;
            Size = (int)size;
            Values = new float[Count * Size];
            Labels = new long[Count];
            Buffer.BlockCopy(reader.ReadBytes(4 * Values.Length), 0, Values, 0, 4 * Values.Length);
            Buffer.BlockCopy(reader.ReadBytes(8 * Count), 0, Labels, 0, 8 * Count);
        }
    }

    public int Count { get; }

    /// <summary>Elements of a row.</summary>
    public int Size { get; }

    public float[] Values { get; }

    public long[] Labels { get; }
}

/// <summary>A request to train or to evaluate, or the reply.</summary>
public sealed class Exchange
{
    public const uint Train = 1, Evaluate = 2;
    private const uint Float = 1;
    private const int HeadingSize = 64;
    private static readonly byte[] Magic = Encoding.ASCII.GetBytes("ORTRFED1");

    public uint Kind;
    public ulong Round, SeedOrRows, Epochs, Batch;
    public double RateOrLoss;
    public float[] Parameters = new float[0];

    public static Exchange Read(string path)
    {
        using (var reader = new BinaryReader(File.OpenRead(path)))
        {
            long length = reader.BaseStream.Length;
            if (length < HeadingSize)
            {
                throw new Refused($"{path}: expected a heading of {HeadingSize} bytes, found {length}");
            }
            bool isRequest = reader.ReadBytes(Magic.Length).SequenceEqual(Magic);
            var read = new Exchange { Kind = reader.ReadUInt32() };
            uint type = reader.ReadUInt32();
            ulong elements = reader.ReadUInt64();
            read.Round = reader.ReadUInt64();
            read.SeedOrRows = reader.ReadUInt64();
            read.Epochs = reader.ReadUInt64();
            read.Batch = reader.ReadUInt64();
            read.RateOrLoss = reader.ReadDouble();
            if (!isRequest || (read.Kind != Train && read.Kind != Evaluate) || type != Float || read.Batch < 1)
            {
                throw new Refused(path + ": expected a request to train or to evaluate float32");
            }
            if (elements > (ulong)length / 4 || (ulong)length != HeadingSize + 4 * elements)
            {
                throw new Refused($"{path}: expected {elements} elements, found {length - HeadingSize} bytes");
            }
            read.Parameters = new float[elements];
            Buffer.BlockCopy(reader.ReadBytes(4 * read.Parameters.Length), 0, read.Parameters, 0, 4 * read.Parameters.Length);
            return read;
        }
    }

    /// <summary>Writes under another name and renames, so that the file is never there in part.</summary>
    public void Write(string path)
    {
        string partial = path + ".partial";
        using (var writer = new BinaryWriter(File.Create(partial)))
        {
            writer.Write(Magic);
            writer.Write(Kind);
            writer.Write(Float);
            writer.Write((ulong)Parameters.Length);
            writer.Write(Round);
            writer.Write(SeedOrRows);
            writer.Write(Epochs);
            writer.Write(Batch);
            writer.Write(RateOrLoss);
            var bytes = new byte[4 * Parameters.Length];
            Buffer.BlockCopy(Parameters, 0, bytes, 0, bytes.Length);
            writer.Write(bytes);
        }
        File.Move(partial, path);
    }
}

public static class Client
{
    /// <summary>A number of SplitMix64 (Steele, Lea and Flood 2014).</summary>
    private static ulong Next(ref ulong state)
    {
        unchecked
        {
            ulong z = state += 0x9E3779B97F4A7C15;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
            return z ^ (z >> 31);
        }
    }

    private static Exchange Answer(Exchange request, Rows rows, TrainingSession session)
    {
        long elements = session.GetParametersSize(true);
        if (elements != request.Parameters.Length)
        {
            throw new Refused($"expected {elements} elements, those of the model, found {request.Parameters.Length}");
        }
        bool trains = request.Kind == Exchange.Train;
        long[] shape = session.GetModelInputTypeInfo(true, 0).Shape;
        long row = shape.Skip(1).Aggregate(1L, (product, dimension) => product * dimension);
        if (row != rows.Size)
        {
            throw new Refused($"expected rows of {row} elements, found {rows.Size}");
        }
        int[] order = Enumerable.Range(0, rows.Count).ToArray();
        ulong random = request.SeedOrRows << 32 | (request.Round & 0xFFFFFFFF);
        ulong passes = trains ? request.Epochs : 1;
        double loss = 0;
        // The tensor shares the memory of the array.
        using (OrtValue buffer = OrtValue.CreateTensorValueFromMemory(request.Parameters, new[] { elements }))
        {
            // The parameters of the server take the place of those of the checkpoint.
            session.FromBuffer(buffer, true);
            if (trains && request.RateOrLoss != 0)
            {
                session.SetLearningRate((float)request.RateOrLoss);
            }
            for (ulong pass = 0; pass < passes; ++pass)
            {
                for (int i = rows.Count - 1; trains && i > 0; --i)
                {
                    int j = (int)(Next(ref random) % (ulong)(i + 1)), kept = order[i];
                    order[i] = order[j];
                    order[j] = kept;
                }
                loss = 0; // that of the last pass is reported
                for (int first = 0; first < rows.Count;)
                {
                    int here = (int)Math.Min(request.Batch, (ulong)(rows.Count - first));
                    loss += Step(session, rows, order, first, here, shape, trains) * here / rows.Count;
                    first += here;
                }
            }
            session.CopyParametersToBuffer(buffer, true);
        }
        return new Exchange
        {
            Kind = request.Kind,
            Round = request.Round,
            SeedOrRows = (ulong)rows.Count,
            RateOrLoss = loss,
            Parameters = trains ? request.Parameters : new float[0],
        };
    }

    private static double Step(
        TrainingSession session, Rows rows, int[] order, int first, int here, long[] shape, bool trains)
    {
        var values = new float[here * rows.Size];
        var labels = new long[here];
        for (int i = 0; i < here; ++i)
        {
            Array.Copy(rows.Values, order[first + i] * rows.Size, values, i * rows.Size, rows.Size);
            labels[i] = rows.Labels[order[first + i]];
        }
        shape[0] = here;
        using (OrtValue x = OrtValue.CreateTensorValueFromMemory(values, shape))
        using (OrtValue y = OrtValue.CreateTensorValueFromMemory(labels, new long[] { here }))
        {
            var inputs = new[] { x, y };
            using (IDisposableReadOnlyCollection<OrtValue> outputs = trains ? session.TrainStep(inputs) : session.EvalStep(inputs))
            {
                if (trains)
                {
                    session.OptimizerStep();
                    session.LazyResetGrad();
                }
                return outputs[0].GetTensorDataAsSpan<float>()[0]; // the loss comes first
            }
        }
    }

    public static int Main(string[] arguments)
    {
        if (arguments.Length != 5)
        {
            Console.Error.WriteLine("error: usage: Client.exe ARTIFACTS TRAIN TEST REQUEST REPLY");
            return 1;
        }
        try
        {
            Exchange request = Exchange.Read(arguments[3]);
            var rows = new Rows(arguments[request.Kind == Exchange.Train ? 1 : 2]);
            using (var options = new SessionOptions { IntraOpNumThreads = 1 })
            using (CheckpointState state = CheckpointState.LoadCheckpoint(arguments[0] + "/checkpoint"))
            using (var session = new TrainingSession(
                options, state, arguments[0] + "/training_model.onnx", arguments[0] + "/eval_model.onnx",
                arguments[0] + "/optimizer_model.onnx"))
            {
                Answer(request, rows, session).Write(arguments[4]);
            }
            return 0;
        }
        catch (Exception error) when (error is Refused || error is IOException || error is OnnxRuntimeException)
        {
            Console.Error.WriteLine("error: " + error.Message);
            return 1;
        }
    }
}
