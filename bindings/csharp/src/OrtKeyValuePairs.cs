using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Strings by key, as calls take and return them.</summary>
    public class OrtKeyValuePairs : SafeHandle
    {
        private readonly bool readOnly;
        private Dictionary<string, string> entries;

        /// <summary>Creates an empty set of pairs.</summary>
        public OrtKeyValuePairs()
            : base(IntPtr.Zero, true)
        {
            OrtApi.CreateKeyValuePairs(out IntPtr pairs);
            SetHandle(pairs);
            entries = new Dictionary<string, string>();
        }

        /// <summary>Creates pairs with given entries.</summary>
        /// <param name="keyValuePairs">The entries; null for none.</param>
        public OrtKeyValuePairs(IReadOnlyDictionary<string, string> keyValuePairs)
            : this()
        {
            foreach (KeyValuePair<string, string> entry in keyValuePairs ?? new Dictionary<string, string>())
            {
                Add(entry.Key, entry.Value);
            }
        }

        /// <summary>Pairs that belong to the library.</summary>
        internal OrtKeyValuePairs(IntPtr pairs)
            : base(IntPtr.Zero, false)
        {
            readOnly = true;
            SetHandle(pairs);
            Refresh();
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The entries.</summary>
        public IReadOnlyDictionary<string, string> Entries => entries;

        /// <summary>The native handle of the pairs.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        private IntPtr Changeable =>
            readOnly ? throw new InvalidOperationException("the pairs describe a device, expected pairs of the program")
                     : Live;

        /// <summary>Adds an entry, or replaces the value of one.</summary>
        /// <param name="key">The key; it is not empty.</param>
        /// <param name="value">The value.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="System.ArgumentException">When the key is empty.</exception>
        /// <exception cref="System.InvalidOperationException">When the pairs describe a device.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Add(string key, string value)
        {
            if (Arguments.NotNull(key, nameof(key)).Length == 0)
            {
                throw new ArgumentException("the key is empty, expected a text", nameof(key));
            }
            OrtApi.AddKeyValuePair(
                Changeable, NativeText.Utf8(key, nameof(key)), NativeText.Utf8(value, nameof(value)));
            entries[key] = value;
        }

        /// <summary>Removes an entry, if there is one.</summary>
        /// <param name="key">The key.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="key"/> is null.</exception>
        /// <exception cref="System.InvalidOperationException">When the pairs describe a device.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Remove(string key)
        {
            OrtApi.RemoveKeyValuePair(Changeable, NativeText.Utf8(key, nameof(key)));
            entries.Remove(key);
        }

        /// <summary>Reads the entries again.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public unsafe void Refresh()
        {
            IntPtr keys = IntPtr.Zero, values = IntPtr.Zero;
            OrtApi.GetKeyValuePairs(Live, &keys, &values, out UIntPtr count);
            var read = new Dictionary<string, string>((int)count);
            for (int i = 0; i < (int)count; ++i)
            {
                read[NativeText.Read(Marshal.ReadIntPtr(keys, i * IntPtr.Size))] =
                    NativeText.Read(Marshal.ReadIntPtr(values, i * IntPtr.Size));
            }
            entries = read;
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseKeyValuePairs(handle);
            return true;
        }
    }
}
