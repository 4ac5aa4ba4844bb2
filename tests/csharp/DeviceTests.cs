using System;
using System.Collections.Generic;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>Execution providers, devices, and memory of allocators.</summary>
[TestFixture]
public class DeviceTests
{
    [Test]
    public void SettingsOfProvidersThatDoNotExistSaySo()
    {
        using (var options = new SessionOptions())
        {
            var requests = new Dictionary<Action, string>
            {
                { () => new OrtCUDAProviderOptions(), "CUDA" },
                { () => new OrtROCMProviderOptions(), "ROCM" },
                { () => new OrtTensorRTProviderOptions(), "TensorRT" },
                { () => options.AppendExecutionProvider_CUDA((OrtCUDAProviderOptions)null), "CUDA" },
                { () => options.AppendExecutionProvider_ROCm((OrtROCMProviderOptions)null), "ROCM" },
                { () => options.AppendExecutionProvider_Tensorrt((OrtTensorRTProviderOptions)null), "TensorRT" },
                { () => SessionOptions.MakeSessionOptionWithCudaProvider((OrtCUDAProviderOptions)null), "CUDA" },
                { () => SessionOptions.MakeSessionOptionWithRocmProvider((OrtROCMProviderOptions)null), "ROCM" },
                { () => SessionOptions.MakeSessionOptionWithTensorrtProvider((OrtTensorRTProviderOptions)null), "TensorRT" },
                { () => OrtEnv.Instance().RegisterExecutionProviderLibrary("mine", "libmine.so"), "libmine.so" },
            };
            foreach (KeyValuePair<Action, string> request in requests)
            {
                var error = Assert.Throws<OnnxRuntimeException>(() => request.Key());
                StringAssert.Contains(request.Value, error.Message);
                StringAssert.Contains("CPUExecutionProvider", error.Message);
            }
        }
        var unknown = Assert.Throws<OnnxRuntimeException>(() => OrtEnv.Instance().UnregisterExecutionProviderLibrary("mine"));
        StringAssert.Contains("no library is registered as mine", unknown.Message);
    }

    [Test]
    public void TheDeviceIsTheCpu()
    {
        IReadOnlyList<OrtEpDevice> devices = OrtEnv.Instance().GetEpDevices();
        OrtEpDevice device = devices.Single();
        Assert.That(device.EpName, Is.EqualTo("CPUExecutionProvider"));
        Assert.That(device.EpVendor, Is.Not.Empty);
        Assert.That(device.EpMetadata.Entries, Is.Empty);
        Assert.That(device.EpOptions.Entries, Is.Empty);
        Assert.That(device.HardwareDevice.Type, Is.EqualTo(OrtHardwareDeviceType.CPU));
        Assert.That(device.HardwareDevice.VendorId, Is.EqualTo(0));
        Assert.That(device.HardwareDevice.DeviceId, Is.EqualTo(0));
        Assert.That(device.HardwareDevice.Vendor, Is.Not.Null);
        using (OrtKeyValuePairs about = device.HardwareDevice.Metadata)
        {
            // They are the library's own: a program that changed them would change them for everybody.
            Assert.Throws<InvalidOperationException>(() => about.Add("a", "b"));
            Assert.Throws<InvalidOperationException>(() => about.Remove("a"));
        }
        Assert.That(device.HardwareDevice.Metadata.Entries, Is.Empty);

        using (var options = new SessionOptions())
        {
            options.AppendExecutionProvider(OrtEnv.Instance(), devices, null);
            options.AppendExecutionProvider(OrtEnv.Instance(), devices, new Dictionary<string, string> { { "a", "b" } });
            Assert.Throws<OnnxRuntimeException>(
                () => options.AppendExecutionProvider(OrtEnv.Instance(), new OrtEpDevice[0], null));
            Assert.Throws<ArgumentNullException>(
                () => options.AppendExecutionProvider(OrtEnv.Instance(), new OrtEpDevice[1], null));
            options.SetEpSelectionPolicy(ExecutionProviderDevicePolicy.MIN_OVERALL_POWER);
            Assert.Throws<OnnxRuntimeException>(() => options.SetEpSelectionPolicy((ExecutionProviderDevicePolicy)7));
            options.SetEpSelectionPolicyDelegate();
            var error = Assert.Throws<OnnxRuntimeException>(
                () => options.SetEpSelectionPolicyDelegate((all, model, library, most) => all.ToList()));
            Assert.That(error.ErrorCode, Is.EqualTo(ErrorCode.NotImplemented));
            StringAssert.Contains("CPUExecutionProvider", error.Message);
            using (var session = new InferenceSession(Onnx.Affine(), options))
            {
                Assert.That(session.InputNames, Is.Not.Empty);
            }
        }
    }

    [Test]
    public void AllocatorsGiveMemoryThatBindingsUse()
    {
        using (var session = new InferenceSession(Onnx.Affine()))
        using (var allocator = new OrtAllocator(session, OrtMemoryInfo.DefaultInstance))
        using (OrtMemoryAllocation x = allocator.Allocate(12))
        using (OrtMemoryAllocation y = OrtAllocator.DefaultInstance.Allocate(8))
        using (OrtIoBinding binding = session.CreateIoBinding())
        using (var options = new RunOptions())
        using (OrtValue inside = OrtValue.CreateTensorValueWithData(
            x.Info, TensorElementType.Float, new long[] { 1, 3 }, x.DangerousGetHandle(), x.Size))
        {
            new float[] { 1, 2, 3 }.CopyTo(inside.GetTensorMutableDataAsSpan<float>());
            Assert.That(x.Size, Is.EqualTo(12));
            Assert.That(x.Info.Name, Is.EqualTo(OrtMemoryInfo.DefaultInstance.Name));
            Assert.That(x.Info.GetAllocatorType(), Is.EqualTo(OrtAllocatorType.ArenaAllocator));
            Assert.That(y.Info, Is.EqualTo(OrtMemoryInfo.DefaultInstance));
            Assert.That(allocator.Info, Is.EqualTo(x.Info));
            binding.BindInput("x", TensorElementType.Float, new long[] { 1, 3 }, x);
            binding.BindOutput("y", TensorElementType.Float, new long[] { 1, 2 }, y);
            session.RunWithBinding(options, binding);
            using (OrtValue result = OrtValue.CreateTensorValueWithData(
                y.Info, TensorElementType.Float, new long[] { 2 }, y.DangerousGetHandle(), y.Size))
            {
                Assert.That(result.GetTensorDataAsSpan<float>().ToArray(), Is.EqualTo(new float[] { 16, 26 }));
            }
            Assert.Throws<OnnxRuntimeException>(
                () => binding.BindInput("x", TensorElementType.Double, new long[] { 1, 3 }, x), "24 bytes in 12");
            Assert.Throws<ArgumentNullException>(
                () => binding.BindInput("x", TensorElementType.Float, new long[] { 1, 3 }, null));
        }
    }

    [Test]
    public void MemoryOutlivesItsAllocator()
    {
        OrtMemoryAllocation memory;
        OrtAllocator allocator;
        using (var session = new InferenceSession(Onnx.Affine()))
        {
            allocator = new OrtAllocator(session, OrtMemoryInfo.DefaultInstance);
            memory = allocator.Allocate(64);
            allocator.Dispose();
            Assert.That(allocator.IsClosed, Is.False, "freed with its last memory");
        }
        memory.Dispose();
        memory.Dispose();
        Assert.That(memory.IsClosed && allocator.IsClosed);
        Assert.Throws<ObjectDisposedException>(() => allocator.Allocate(1));
        Assert.That(memory.Info.Name, Is.EqualTo(OrtMemoryInfo.DefaultInstance.Name));
        OrtAllocator.DefaultInstance.Dispose();
        OrtAllocator.DefaultInstance.Allocate(1).Dispose();
    }

    [Test]
    public void ArenasAreAccepted()
    {
        using (var settings = new OrtArenaCfg(0, -1, -1, -1))
        using (var info = new OrtMemoryInfo(OrtMemoryInfo.allocatorCPU, OrtAllocatorType.ArenaAllocator, 0, OrtMemType.Default))
        {
            Assert.That(settings.IsInvalid, Is.False);
            OrtEnv.Instance().CreateAndRegisterAllocator(info, settings);
            OrtEnv.Instance().CreateAndRegisterAllocator(info, null);
        }
        Assert.Throws<OnnxRuntimeException>(() => new OrtArenaCfg(0, 2, -1, -1));
    }

    [Test]
    public void TheAssemblyHasAStrongNameWithAVersionThatStays()
    {
        var name = typeof(InferenceSession).Assembly.GetName();
        Assert.That(BitConverter.ToString(name.GetPublicKeyToken()), Is.EqualTo("42-D6-8A-0A-FC-86-69-47"));
        Assert.That(name.Version, Is.EqualTo(new Version(0, 0, 0, 0)));
    }
}
