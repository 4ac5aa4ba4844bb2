using System;
using System.Buffers;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>Tensors use the caller's memory in place, and keep it alive as long as they can be reached.</summary>
[TestFixture]
public class MemoryTests
{
    [Test]
    public void AValueOverAnArrayIsTheArray()
    {
        var array = new float[] { 1, 2, 3, 4, 5, 6 };
        using (OrtValue value = OrtValue.CreateTensorValueFromMemory(array, new long[] { 2, 3 }))
        {
            array[4] = 40;
            Assert.That(value.GetTensorDataAsSpan<float>()[4], Is.EqualTo(40));
            Span<float> elements = value.GetTensorMutableDataAsSpan<float>();
            elements[0] = 10;
            Span<float> raw = MemoryMarshal.Cast<byte, float>(value.GetTensorMutableRawData());
            raw[1] = 20;
            Assert.That(array, Is.EqualTo(new float[] { 10, 20, 3, 4, 40, 6 }));
            Assert.That(value.GetTensorTypeAndShape().ToString(), Is.EqualTo("Float[2,3]"));
            Assert.That(value.GetTensorSizeInBytes(), Is.EqualTo(24));
            Assert.That(value.IsTensor && !value.IsSparseTensor);
            Assert.That(value.GetTypeInfo().OnnxType, Is.EqualTo(OnnxValueType.ONNX_TYPE_TENSOR));
        }
    }

    [Test]
    public unsafe void TheNativeTensorLiesOverTheArray()
    {
        // Written through the array, read by the library: a step sees the new label without a new value.
        var fixture = new Fixture("mlp_adamw");
        DenseTensor<float> x = fixture.Inputs(0);
        DenseTensor<long> y = fixture.Labels(0);
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        using (FixedBufferOnnxValue fixedX = FixedBufferOnnxValue.CreateFromTensor(x))
        using (FixedBufferOnnxValue fixedY = FixedBufferOnnxValue.CreateFromTensor(y))
        {
            var loss = new DenseTensor<float>(new int[0]);
            using (FixedBufferOnnxValue fixedLoss = FixedBufferOnnxValue.CreateFromTensor(loss))
            {
                var inputs = new[] { fixedX, fixedY };
                var outputs = new[] { fixedLoss };
                session.TrainStep(inputs, outputs);
                Assert.That(loss.GetValue(0), Is.EqualTo(fixture.Numbers("train_losses")[0]).Within(1e-3));
                float[] next = fixture.Inputs(1).ToArray();
                next.CopyTo(x.Buffer);
                fixture.Labels(1).ToArray().CopyTo(y.Buffer);
                session.OptimizerStep();
                session.LazyResetGrad();
                session.TrainStep(inputs, outputs);
                Assert.That(loss.GetValue(0), Is.EqualTo(fixture.Numbers("train_losses")[1]).Within(1e-3));
            }
        }
    }

    [Test]
    public void AValueMayLieOverAPartOfAnArray()
    {
        var array = new long[] { 0, 1, 2, 3, 4, 5 };
        using (OrtValue value = OrtValue.CreateTensorValueFromMemory(
            OrtMemoryInfo.DefaultInstance, new Memory<long>(array, 2, 3), new long[] { 3 }))
        {
            Assert.That(value.GetTensorDataAsSpan<long>().ToArray(), Is.EqualTo(new long[] { 2, 3, 4 }));
            Span<long> elements = value.GetTensorMutableDataAsSpan<long>();
            elements[1] = 30;
            Assert.That(array[3], Is.EqualTo(30));
        }
        using (OrtValue value = OrtValue.CreateTensorValueFromMemory(array, new long[] { 2 }))
        {
            // The memory may be larger than the tensor.
            Assert.That(value.GetTensorDataAsSpan<long>().Length, Is.EqualTo(2));
        }
    }

    [Test]
    public void AValueMayLieOverUnmanagedMemory()
    {
        IntPtr memory = Marshal.AllocHGlobal(8);
        try
        {
            Marshal.Copy(new[] { 1.5f, 2.5f }, 0, memory, 2);
            using (OrtValue value = OrtValue.CreateTensorValueWithData(
                OrtMemoryInfo.DefaultInstance, TensorElementType.Float, new long[] { 2 }, memory, 8))
            {
                Assert.That(value.GetTensorDataAsSpan<float>().ToArray(), Is.EqualTo(new[] { 1.5f, 2.5f }));
            }
        }
        finally
        {
            Marshal.FreeHGlobal(memory);
        }
    }

    [Test]
    public void EveryElementTypeGoesInAndOut()
    {
        RoundTrip(1.5f, TensorElementType.Float);
        RoundTrip(1.5, TensorElementType.Double);
        RoundTrip((sbyte)-3, TensorElementType.Int8);
        RoundTrip((short)-3, TensorElementType.Int16);
        RoundTrip(-3, TensorElementType.Int32);
        RoundTrip(-3L, TensorElementType.Int64);
        RoundTrip((byte)3, TensorElementType.UInt8);
        RoundTrip((ushort)3, TensorElementType.UInt16);
        RoundTrip(3u, TensorElementType.UInt32);
        RoundTrip(3ul, TensorElementType.UInt64);
        RoundTrip(true, TensorElementType.Bool);
        RoundTrip((Float16)1.5f, TensorElementType.Float16);
        RoundTrip((BFloat16)1.5f, TensorElementType.BFloat16);
    }

    [Test]
    public void TypesThatDoNotFitAreRefused()
    {
        OrtValue value = OrtValue.CreateTensorValueFromMemory(new float[4], new long[] { 4 });
        Refused(
            "GetTensorDataAsSpan<Int32>: the tensor's elements are of type Float",
            () => GC.KeepAlive(value.GetTensorDataAsSpan<int>().Length));
        Refused("Double", () => GC.KeepAlive(value.GetTensorMutableDataAsSpan<double>().Length));
        Refused("DateTime", () => OrtValue.CreateTensorValueFromMemory(new DateTime[1], new long[] { 1 }));
        Refused("Char", () => FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<char>(1)));
        Refused("String", () => FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<string>(1)));
        NamedOnnxValue named = NamedOnnxValue.CreateFromTensor("x", new DenseTensor<float>(2));
        Refused("AsTensor<Int64>: the value 'x' is a Tensor<Single>[2]", () => named.AsTensor<long>());
        Refused("AsEnumerable<Int64>", () => named.AsEnumerable<long>());
        var memory = new Memory<double>(new double[2]);
        Assert.Throws<ArgumentException>(() => FixedBufferOnnxValue.CreateFromMemory(
            OrtMemoryInfo.DefaultInstance, memory, TensorElementType.Float, new long[] { 2 }, 8));
        Assert.Throws<ArgumentException>(() => FixedBufferOnnxValue.CreateFromMemory(
            OrtMemoryInfo.DefaultInstance, memory, TensorElementType.Double, new long[] { 2 }, 17));
        Assert.Throws<ArgumentException>(
            () => FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<float>(new[] { 2, 3 }, true)));
    }

    [Test]
    public void MemoryThatIsTooSmallIsRefused()
    {
        const string call = "CreateTensorWithDataAsOrtValue";
        Refused(call, () => OrtValue.CreateTensorValueFromMemory(new float[5], new long[] { 2, 3 }));
        Refused(call, () => OrtValue.CreateTensorValueFromMemory(new float[5], new long[] { -1 }));
        var bytes = new Memory<byte>(new byte[8]);
        Refused(call, () => FixedBufferOnnxValue.CreateFromMemory(
            OrtMemoryInfo.DefaultInstance, bytes, TensorElementType.Float, new long[] { 2 }, 7));
    }

    [Test]
    public void ATensorWithoutElementsIsATensor()
    {
        using (OrtValue value = OrtValue.CreateTensorValueFromMemory(new float[0], new long[] { 0, 3 }))
        {
            Assert.That(value.GetTensorTypeAndShape().ElementCount, Is.EqualTo(0));
            Assert.That(value.GetTensorDataAsSpan<float>().Length, Is.EqualTo(0));
        }
        using (FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<float>(new[] { 0, 3 })))
        {
        }
    }

    [Test]
    public void BytesMayStandForAnyType()
    {
        var fixture = new Fixture("mlp_adamw");
        float[] x = fixture.Inputs(0).ToArray();
        var raw = new byte[x.Length * 4];
        Buffer.BlockCopy(x, 0, raw, 0, raw.Length);
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        using (FixedBufferOnnxValue input = FixedBufferOnnxValue.CreateFromMemory(
            OrtMemoryInfo.DefaultInstance, new Memory<byte>(raw), TensorElementType.Float, new long[] { 16, 64 },
            raw.Length))
        using (var outputs = session.TrainStep(new[] { input, fixture.Buffers(0)[1] }))
        {
            float loss = outputs[0].AsTensor<float>().GetValue(0);
            Assert.That(loss, Is.EqualTo(fixture.Numbers("train_losses")[0]).Within(1e-3));
        }
    }

    [Test]
    public void ArraysStayPinnedWhileTheirValueLives()
    {
        var values = new List<OrtValue>();
        var sums = new List<float>();
        for (int i = 0; i < 200; ++i)
        {
            values.Add(ValueOverAnArrayThatNobodyElseKnows(i, out float sum));
            sums.Add(sum);
            Churn();
        }
        Collect();
        for (int i = 0; i < values.Count; ++i)
        {
            using (OrtValue copy = Copied(values[i]))
            {
                Assert.That(copy.GetTensorDataAsSpan<float>().ToArray().Sum(), Is.EqualTo(sums[i]));
            }
        }
    }

    [Test]
    public void StepsGetTheirInputsWhateverTheCollectorDoes()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            for (int i = 0; i < 50; ++i)
            {
                session.LazyResetGrad();
                List<OrtValue> inputs = fixture.Values(0);
                List<FixedBufferOnnxValue> buffers = fixture.Buffers(0);
                Churn();
                Collect();
                float loss = session.TrainStep(inputs)[0].GetTensorDataAsSpan<float>().ToArray()[0];
                Assert.That(loss, Is.EqualTo(fixture.Numbers("train_losses")[0]).Within(1e-3));
                Tensor<float> tensor = LossTensor(session, buffers);
                Churn();
                Collect();
                Assert.That(tensor.GetValue(0), Is.EqualTo(loss), "the tensor keeps the value behind it");
            }
        }
    }

    [Test]
    public void AnOutputIsAnInputWithoutACopy()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            var outputs = session.EvalStep(fixture.Buffers(0));
            var loss = (DenseTensor<float>)outputs[0].AsTensor<float>();
            using (FixedBufferOnnxValue again = FixedBufferOnnxValue.CreateFromTensor(loss))
            {
                float wanted = loss.GetValue(0);
                loss.SetValue(0, -1);
                session.EvalStep(fixture.Buffers(0), new[] { again });
                Assert.That(loss.GetValue(0), Is.EqualTo(wanted));
                outputs.Dispose();
                Collect();
                // The fixed buffer keeps the value pinned: its memory can still be written.
                session.EvalStep(fixture.Buffers(0), new[] { again });
            }
        }
    }

    [Test]
    public void ACustomMemoryIsPinnedAndLetGo()
    {
        using (var memory = new CountedMemory(6))
        {
            OrtValue value = OrtValue.CreateTensorValueFromMemory(
                OrtMemoryInfo.DefaultInstance, memory.Memory, new long[] { 6 });
            Assert.That(memory.Pins, Is.EqualTo(1));
            value.Dispose();
            value.Dispose();
            Assert.That(memory.Pins, Is.EqualTo(0));
            Assert.Throws<OnnxRuntimeException>(() => OrtValue.CreateTensorValueFromMemory(
                OrtMemoryInfo.DefaultInstance, memory.Memory, new long[] { 7 }));
            Assert.That(memory.Pins, Is.EqualTo(0), "a value that was not made pins nothing");
        }
    }

    [Test]
    public void StepsIntoBuffersMakeNoGarbage()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        using (FixedBufferOnnxValue loss = FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<float>(new int[0])))
        {
            FixedBufferOnnxValue[] inputs = fixture.OneSample().ToArray();
            var outputs = new[] { loss };
            session.TrainStep(inputs, outputs);
            Collect();
            int before = GC.CollectionCount(0);
            // 16 bytes per step would fill the 4 MiB for new objects more than once.
            for (int i = 0; i < 500000; ++i)
            {
                session.TrainStep(inputs, outputs);
            }
            Assert.That(GC.CollectionCount(0), Is.EqualTo(before));
        }
    }

    [Test]
    public void WhatNobodyDisposesOfIsCollected()
    {
        var fixture = new Fixture("mlp_adamw");
        var alive = new List<WeakReference>();
        for (int i = 0; i < 20; ++i)
        {
            alive.AddRange(Abandon(fixture));
            Collect();
        }
        Collect();
        Assert.That(alive.Count(reference => reference.IsAlive), Is.LessThan(alive.Count / 2));
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static IEnumerable<WeakReference> Abandon(Fixture fixture)
    {
        CheckpointState state = fixture.LoadState();
        TrainingSession session = fixture.MakeSession(state);
        var outputs = session.TrainStep(fixture.Buffers(0));
        return new[] { new WeakReference(state), new WeakReference(session), new WeakReference(outputs) };
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static Tensor<float> LossTensor(TrainingSession session, List<FixedBufferOnnxValue> buffers)
    {
        session.LazyResetGrad();
        return session.TrainStep(buffers)[0].AsTensor<float>();
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static OrtValue ValueOverAnArrayThatNobodyElseKnows(int seed, out float sum)
    {
        float[] array = Enumerable.Range(seed, 32).Select(i => (float)i).ToArray();
        sum = array.Sum();
        return OrtValue.CreateTensorValueFromMemory(array, new long[] { 32 });
    }

    /// <summary>A copy that the library makes of the memory at the address that it holds.</summary>
    private static OrtValue Copied(OrtValue value)
    {
        using (CheckpointState state = new Fixture("mlp_adamw").LoadState())
        {
            state.UpdateParameter("fc1.bias", value);
            return state.GetParameter("fc1.bias");
        }
    }

    private static void Churn()
    {
        var garbage = new List<byte[]>();
        for (int i = 0; i < 200; ++i)
        {
            garbage.Add(new byte[100 + i]);
        }
        GC.KeepAlive(garbage);
    }

    private static void Collect()
    {
        GC.Collect();
        GC.WaitForPendingFinalizers();
        GC.Collect();
    }

    private static void RoundTrip<T>(T element, TensorElementType type)
        where T : struct
    {
        using (OrtValue value = OrtValue.CreateTensorValueFromMemory(new[] { element, default(T) }, new long[] { 2 }))
        using (OrtValue own = OrtValue.CreateAllocatedTensorValue(OrtAllocator.DefaultInstance, type, new long[] { 2 }))
        {
            Assert.That(value.GetTensorTypeAndShape().ElementDataType, Is.EqualTo(type));
            value.GetTensorDataAsSpan<T>().CopyTo(own.GetTensorMutableDataAsSpan<T>());
            Assert.That(own.GetTensorDataAsSpan<T>().ToArray(), Is.EqualTo(new[] { element, default(T) }));
        }
        using (FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<T>(2)))
        {
        }
    }

    private static void Refused(string said, Action call)
    {
        var error = Assert.Throws<OnnxRuntimeException>(() => call());
        Assert.That(error.ErrorCode, Is.EqualTo(ErrorCode.InvalidArgument));
        StringAssert.Contains(said, error.Message);
    }

    /// <summary>Memory that counts its pins.</summary>
    private sealed class CountedMemory : MemoryManager<float>
    {
        private readonly float[] array;

        public CountedMemory(int length)
        {
            array = new float[length];
        }

        public int Pins { get; private set; }

        public override Span<float> GetSpan()
        {
            return array;
        }

        public override unsafe MemoryHandle Pin(int elementIndex = 0)
        {
            ++Pins;
            GCHandle handle = GCHandle.Alloc(array, GCHandleType.Pinned);
            return new MemoryHandle((float*)handle.AddrOfPinnedObject() + elementIndex, handle, this);
        }

        public override void Unpin()
        {
            --Pins;
        }

        protected override void Dispose(bool disposing)
        {
        }
    }
}
