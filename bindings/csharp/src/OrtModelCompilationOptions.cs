using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    public unsafe partial class OrtModelCompilationOptions
    {
        // The library reads the model from this memory, so the memory stays pinned.
        private GCHandle model;

        /// <summary>Sets the model as the content of a file, which is not copied.</summary>
        /// <param name="buffer">The content of an ONNX file. It is pinned until the object is disposed
        /// of.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="buffer"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the buffer is empty.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void SetInputModelFromBuffer(byte[] buffer)
        {
            GCHandle pin = GCHandle.Alloc(Arguments.NotNull(buffer, nameof(buffer)), GCHandleType.Pinned);
            try
            {
                NativeStatus.ThrowOnError(OrtCompileApi.ModelCompilationOptions_SetInputModelFromBuffer(
                    Live, buffer, (UIntPtr)buffer.Length));
            }
            catch
            {
                pin.Free();
                throw;
            }
            Unpin();
            model = pin;
        }

        /// <summary>Stores large initializers in a file next to the model.</summary>
        /// <param name="filePath">The file, relative to the folder of the model.</param>
        /// <param name="threshold">Initializers with more bytes are stored in the file.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="filePath"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the path is empty.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void SetOutputModelExternalInitializersFile(string filePath, ulong threshold)
        {
            NativeStatus.ThrowOnError(OrtCompileApi.ModelCompilationOptions_SetOutputModelExternalInitializersFile(
                Live, NativeText.Path(filePath, nameof(filePath)), (UIntPtr)threshold));
        }

        /// <summary>Sets how the model is compiled.</summary>
        /// <param name="flags">The flags.</param>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void SetFlags(OrtCompileApiFlags flags)
        {
            NativeStatus.ThrowOnError(OrtCompileApi.ModelCompilationOptions_SetFlags(Live, (uint)flags));
        }

        /// <summary>Reads the model and writes it as ONNX.</summary>
        /// <remarks>The CPU compiles no nodes: the result is the given model with its functions inlined. If no output
        /// was set, the file has the name of the model's file, with _ctx before .onnx.</remarks>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when no model was given, or there is no such file;
        /// InvalidProtobuf when the file is not an ONNX model; Fail when the flags require compiled nodes, which the
        /// CPU does not have, or forbid replacing a file that exists, or when writing failed.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void CompileModel()
        {
            NativeStatus.ThrowOnError(OrtCompileApi.CompileModel(OrtEnv.Instance(), Live));
        }

        /// <summary>Frees the object.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by the finalizer.</param>
        protected override void Dispose(bool disposing)
        {
            base.Dispose(disposing);
            Unpin();
        }

        private void Unpin()
        {
            if (model.IsAllocated)
            {
                model.Free();
            }
        }
    }
}
