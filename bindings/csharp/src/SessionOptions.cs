using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class SessionOptions
    {
        private static SessionOptions defaultOptions;

        /// <summary>The options of sessions that are created without any. Never disposed of.</summary>
        internal static SessionOptions Default => defaultOptions ?? (defaultOptions = new SessionOptions());

        /// <summary>Requests an execution provider by name.</summary>
        /// <param name="providerName">Its name. Only CPUExecutionProvider, also called CPU, exists.</param>
        /// <param name="providerOptions">Settings of the provider; those of the CPU are
        /// ignored.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="providerName"/> is
        /// null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such provider; the message
        /// lists those that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public unsafe void AppendExecutionProvider(
            string providerName, Dictionary<string, string> providerOptions = null)
        {
            Dictionary<string, string> settings = providerOptions ?? new Dictionary<string, string>();
            using (var keys = new NativeTexts(settings.Keys, nameof(providerOptions)))
            using (var values = new NativeTexts(settings.Values, nameof(providerOptions)))
            {
                NativeStatus.ThrowOnError(OrtApi.SessionOptionsAppendExecutionProvider(
                    Live, NativeText.Utf8(providerName, nameof(providerName)), keys.Pointers, values.Pointers,
                    (UIntPtr)keys.Count));
            }
        }

        /// <summary>Requests the CPU provider, which every session has anyway.</summary>
        /// <param name="useArena">Not 0 for an arena of memory; as <see cref="EnableCpuMemArena"/>.</param>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_CPU(int useArena = 1)
        {
            AppendExecutionProvider("CPU");
            EnableCpuMemArena = useArena != 0;
        }
    }
}
