using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Inputs and outputs of a session that are bound once and used by every run, without a
    /// copy.</summary>
    public class OrtIoBinding : SafeHandle
    {
        // The binding keeps the bound values alive; this field keeps the memory of these values alive.
        private readonly Dictionary<string, object> inputs = new Dictionary<string, object>();
        private readonly Dictionary<string, object> outputs = new Dictionary<string, object>();

        internal OrtIoBinding(OrtSessionHandle session)
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateIoBinding(session, out IntPtr binding));
            SetHandle(binding);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The native handle of the binding.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Binds a value to an input; a run reads its memory when the run starts.</summary>
        /// <param name="name">Name of the input.</param>
        /// <param name="ortValue">The value. It must not be disposed of before the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such input, or the value does
        /// not fit it.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void BindInput(string name, OrtValue ortValue)
        {
            BindInput(name, Arguments.NotNull(ortValue, nameof(ortValue)).Live, ortValue);
        }

        /// <summary>Binds a buffer to an input; a run reads the buffer when the run starts.</summary>
        /// <param name="name">Name of the input.</param>
        /// <param name="fixedValue">The buffer. It must not be disposed of before the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such input, or the value does
        /// not fit it.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void BindInput(string name, FixedBufferOnnxValue fixedValue)
        {
            BindInput(name, Arguments.NotNull(fixedValue, nameof(fixedValue)).Live, fixedValue);
        }

        /// <summary>Binds memory at an address to an input; a run reads it when the run starts.</summary>
        /// <param name="name">Name of the input.</param>
        /// <param name="allocation">The memory. It has to outlive the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such input, or the memory does
        /// not fit it.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void BindInput(string name, OrtExternalAllocation allocation)
        {
            using (OrtValue value = Arguments.NotNull(allocation, nameof(allocation)).CreateOrtValue())
            {
                BindInput(name, value.Live, allocation);
            }
        }

        /// <summary>Binds memory of an allocator to an input; a run reads it when the run starts.</summary>
        /// <param name="name">Name of the input.</param>
        /// <param name="type">Type of the elements.</param>
        /// <param name="shape">The dimensions of the tensor.</param>
        /// <param name="allocation">The memory. It must not be disposed of before the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such input, or the tensor does
        /// not fit it or the memory.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void BindInput(string name, TensorElementType type, long[] shape, OrtMemoryAllocation allocation)
        {
            using (OrtValue value = Over(allocation, type, shape))
            {
                BindInput(name, value.Live, allocation);
            }
        }

        /// <summary>Binds a tensor to an output. Runs write the output into the tensor.</summary>
        /// <param name="name">Name of the output.</param>
        /// <param name="ortValue">A tensor of the type and shape of the output. It must not be disposed of before
        /// the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such output, or the tensor does
        /// not fit it.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void BindOutput(string name, OrtValue ortValue)
        {
            BindOutput(name, Arguments.NotNull(ortValue, nameof(ortValue)).Live, ortValue);
        }

        /// <summary>Binds a buffer to an output. Runs write the output into the buffer.</summary>
        /// <param name="name">Name of the output.</param>
        /// <param name="fixedValue">A buffer of the type and shape of the output. It must not be disposed of
        /// before the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such output, or the buffer does
        /// not fit it.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void BindOutput(string name, FixedBufferOnnxValue fixedValue)
        {
            BindOutput(name, Arguments.NotNull(fixedValue, nameof(fixedValue)).Live, fixedValue);
        }

        /// <summary>Binds memory at an address to an output. Runs write the output into this memory.</summary>
        /// <param name="name">Name of the output.</param>
        /// <param name="allocation">The memory. It has to outlive the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such output, or the memory does
        /// not fit it.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void BindOutput(string name, OrtExternalAllocation allocation)
        {
            using (OrtValue value = Arguments.NotNull(allocation, nameof(allocation)).CreateOrtValue())
            {
                BindOutput(name, value.Live, allocation);
            }
        }

        /// <summary>Binds memory of an allocator to an output. Runs write the output into this memory.</summary>
        /// <param name="name">Name of the output.</param>
        /// <param name="type">Type of the elements.</param>
        /// <param name="shape">The dimensions of the tensor.</param>
        /// <param name="allocation">The memory. It must not be disposed of before the binding.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such output, or the tensor does
        /// not fit it or the memory.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void BindOutput(string name, TensorElementType type, long[] shape, OrtMemoryAllocation allocation)
        {
            using (OrtValue value = Over(allocation, type, shape))
            {
                BindOutput(name, value.Live, allocation);
            }
        }

        /// <summary>Requests an output in memory that runs allocate.</summary>
        /// <param name="name">Name of the output.</param>
        /// <param name="memInfo">Location of the memory.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such output.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void BindOutputToDevice(string name, OrtMemoryInfo memInfo)
        {
            NativeStatus.ThrowOnError(OrtApi.BindOutputToDevice(
                Live, NativeText.Utf8(name, nameof(name)), Arguments.NotNull(memInfo, nameof(memInfo)).Live));
            outputs.Remove(name);
        }

        /// <summary>Names of the bound outputs.</summary>
        /// <returns>The names, in the order in which they were bound.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public unsafe string[] GetOutputNames()
        {
            NativeStatus.ThrowOnError(OrtApi.GetBoundOutputNames(
                Live, OrtAllocator.Default, out IntPtr text, out UIntPtr lengths, out UIntPtr count));
            var sizes = (UIntPtr*)(void*)lengths;
            try
            {
                var names = new string[(int)count];
                var at = (byte*)text;
                for (int i = 0; i < names.Length; ++i)
                {
                    names[i] = Encoding.UTF8.GetString(at, (int)sizes[i]);
                    at += (ulong)sizes[i];
                }
                return names;
            }
            finally
            {
                NativeMemory.Free(text);
                NativeMemory.Free((IntPtr)sizes);
            }
        }

        /// <summary>The outputs of the last run.</summary>
        /// <returns>The values, in the order in which they were bound. The caller disposes of them.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public unsafe IDisposableReadOnlyCollection<OrtValue> GetOutputValues()
        {
            IntPtr values = IntPtr.Zero;
            NativeStatus.ThrowOnError(
                OrtApi.GetBoundOutputValues(Live, OrtAllocator.Default, &values, out UIntPtr count));
            var list = new DisposableList<OrtValue>((int)count);
            for (int i = 0; i < (int)count; ++i)
            {
                list.Add(new OrtValue(Marshal.ReadIntPtr(values, i * IntPtr.Size)));
            }
            NativeMemory.Free(values);
            return list;
        }

        /// <summary>Removes all inputs.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void ClearBoundInputs()
        {
            OrtApi.ClearBoundInputs(Live);
            inputs.Clear();
        }

        /// <summary>Removes all outputs.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void ClearBoundOutputs()
        {
            OrtApi.ClearBoundOutputs(Live);
            outputs.Clear();
        }

        /// <summary>Has no effect: bound inputs are in memory of the CPU.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void SynchronizeBoundInputs()
        {
            NativeStatus.ThrowOnError(OrtApi.SynchronizeBoundInputs(Live));
        }

        /// <summary>Has no effect: a run has computed its outputs when it returns.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void SynchronizeBoundOutputs()
        {
            NativeStatus.ThrowOnError(OrtApi.SynchronizeBoundOutputs(Live));
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseIoBinding(handle);
            return true;
        }

        private static OrtValue Over(OrtMemoryAllocation allocation, TensorElementType type, long[] shape)
        {
            IntPtr memory = Arguments.NotNull(allocation, nameof(allocation)).Live;
            return OrtValue.CreateTensorValueWithData(allocation.Info, type, shape, memory, allocation.Size);
        }

        private void BindInput(string name, OrtValueHandle value, object owner)
        {
            NativeStatus.ThrowOnError(OrtApi.BindInput(Live, NativeText.Utf8(name, nameof(name)), value));
            inputs[name] = owner;
        }

        private void BindOutput(string name, OrtValueHandle value, object owner)
        {
            NativeStatus.ThrowOnError(OrtApi.BindOutput(Live, NativeText.Utf8(name, nameof(name)), value));
            outputs[name] = owner;
        }
    }
}
