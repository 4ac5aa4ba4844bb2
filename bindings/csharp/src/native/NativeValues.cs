using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A list of values in the form for calls: an array of handles, which stay open during the
    /// call.</summary>
    internal sealed unsafe class NativeValues : IDisposable
    {
        private readonly ValueHandles handles = new ValueHandles();
        private GCHandle pin;

        internal NativeValues(IReadOnlyCollection<OrtValue> values, string name)
        {
            try
            {
                handles.Add(values, name);
            }
            catch
            {
                handles.Clear();
                throw;
            }
            pin = GCHandle.Alloc(handles.Array, GCHandleType.Pinned);
        }

        internal int Count => handles.Count;

        internal IntPtr* Pointers => (IntPtr*)pin.AddrOfPinnedObject();

        public void Dispose()
        {
            pin.Free();
            handles.Clear();
        }
    }
}
