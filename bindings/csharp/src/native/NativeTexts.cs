using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A list of strings in the form for calls: an array of addresses.</summary>
    internal sealed unsafe class NativeTexts : IDisposable
    {
        private IntPtr block;

        internal NativeTexts(IReadOnlyCollection<string> texts, string name)
        {
            Arguments.NotNull(texts, name);
            var encoded = new List<byte[]>(texts.Count);
            int size = 0;
            foreach (string text in texts)
            {
                byte[] bytes = NativeText.Utf8(text, name + "[" + encoded.Count + "]");
                encoded.Add(bytes);
                size += bytes.Length;
            }
            Count = encoded.Count;
            // One block of memory contains the addresses, followed by the strings that they point to.
            int addresses = Count * IntPtr.Size;
            block = Marshal.AllocHGlobal(Math.Max(1, addresses + size));
            IntPtr text0 = block + addresses;
            for (int i = 0; i < Count; ++i)
            {
                Marshal.Copy(encoded[i], 0, text0, encoded[i].Length);
                Pointers[i] = text0;
                text0 += encoded[i].Length;
            }
        }

        internal int Count { get; }

        internal IntPtr* Pointers => (IntPtr*)block;

        public void Dispose()
        {
            Marshal.FreeHGlobal(block);
            block = IntPtr.Zero;
        }
    }
}
