using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The metadata of a model.</summary>
    public class ModelMetadata
    {
        /// <summary>Returns a text of a model.</summary>
        private delegate IntPtr TextCall(IntPtr metadata, IntPtr allocator, out IntPtr text);

        private ModelMetadata(IntPtr metadata)
        {
            ProducerName = Read(OrtApi.ModelMetadataGetProducerName.Invoke, metadata);
            GraphName = Read(OrtApi.ModelMetadataGetGraphName.Invoke, metadata);
            GraphDescription = Read(OrtApi.ModelMetadataGetGraphDescription.Invoke, metadata);
            Domain = Read(OrtApi.ModelMetadataGetDomain.Invoke, metadata);
            Description = Read(OrtApi.ModelMetadataGetDescription.Invoke, metadata);
            NativeStatus.ThrowOnError(OrtApi.ModelMetadataGetVersion(metadata, out long version));
            Version = version;
            CustomMetadataMap = ReadCustom(metadata);
        }

        /// <summary>Name of the program that wrote the model.</summary>
        public string ProducerName { get; }

        /// <summary>Name of the graph.</summary>
        public string GraphName { get; }

        /// <summary>Domain of the model.</summary>
        public string Domain { get; }

        /// <summary>Description of the model.</summary>
        public string Description { get; }

        /// <summary>Description of the graph.</summary>
        public string GraphDescription { get; }

        /// <summary>Version of the model.</summary>
        public long Version { get; }

        /// <summary>The entries that the program that wrote the model added.</summary>
        public Dictionary<string, string> CustomMetadataMap { get; }

        /// <summary>The metadata of a session's model.</summary>
        internal static ModelMetadata Of(OrtSessionHandle session)
        {
            NativeStatus.ThrowOnError(OrtApi.SessionGetModelMetadata(session, out IntPtr metadata));
            try
            {
                return new ModelMetadata(metadata);
            }
            finally
            {
                OrtApi.ReleaseModelMetadata(metadata);
            }
        }

        private static string Read(TextCall call, IntPtr metadata)
        {
            NativeStatus.ThrowOnError(call(metadata, OrtAllocator.Default, out IntPtr text));
            return NativeText.Take(text);
        }

        private static unsafe Dictionary<string, string> ReadCustom(IntPtr metadata)
        {
            IntPtr keys = IntPtr.Zero;
            NativeStatus.ThrowOnError(OrtApi.ModelMetadataGetCustomMetadataMapKeys(
                metadata, OrtAllocator.Default, &keys, out long count));
            var entries = new Dictionary<string, string>();
            try
            {
                for (int i = 0; i < count; ++i)
                {
                    string key = NativeText.Take(Marshal.ReadIntPtr(keys, i * IntPtr.Size));
                    NativeStatus.ThrowOnError(OrtApi.ModelMetadataLookupCustomMetadataMap(
                        metadata, OrtAllocator.Default, NativeText.Utf8(key, nameof(key)), out IntPtr text));
                    entries.Add(key, NativeText.Take(text));
                }
            }
            finally
            {
                NativeMemory.Free(keys);
            }
            return entries;
        }
    }
}
