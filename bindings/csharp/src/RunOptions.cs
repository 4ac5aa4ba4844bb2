using System;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class RunOptions
    {
        /// <summary>No options: a null pointer for a call. Never disposed of.</summary>
        internal static readonly RunOptions None = new RunOptions(IntPtr.Zero);

        /// <summary>Adds an adapter, whose tensors runs take by name, in addition to their inputs.</summary>
        /// <param name="loraAdapter">The adapter. Each tensor must have the name of an input of the model, or of an
        /// initializer that a run may replace.</param>
        /// <exception cref="ArgumentNullException">When the adapter is null.</exception>
        /// <exception cref="ObjectDisposedException">When an object was disposed of.</exception>
        public void AddActiveLoraAdapter(OrtLoraAdapter loraAdapter)
        {
            IntPtr adapter = Arguments.NotNull(loraAdapter, nameof(loraAdapter)).Live;
            NativeStatus.ThrowOnError(OrtApi.RunOptionsAddActiveLoraAdapter(Live, adapter));
            GC.KeepAlive(loraAdapter);
        }
    }
}
