using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>
    /// The native values of a call, in one array. Each is kept open until <see cref="Clear"/>,
    /// even if another thread disposes of it meanwhile.
    /// </summary>
    internal sealed class ValueHandles
    {
        private OrtValueHandle[] owners = new OrtValueHandle[8];

        /// <summary>The native values, of which the first <see cref="Count"/> are in use.</summary>
        internal IntPtr[] Array { get; private set; } = new IntPtr[8];

        internal int Count { get; private set; }

        internal void Add<T>(IReadOnlyCollection<T> values, string name)
            where T : class, IRunValue
        {
            Arguments.NotNull(values, name);
            // Lists and arrays are walked without an enumerator, which would allocate in every step.
            if (values is IReadOnlyList<T> list)
            {
                int count = list.Count;
                for (int i = 0; i < count; ++i)
                {
                    AddOne((list[i] ?? throw Missing(name, i)).Live);
                }
                return;
            }
            int index = 0;
            foreach (T value in values)
            {
                AddOne((value ?? throw Missing(name, index)).Live);
                ++index;
            }
        }

        /// <summary>Space for values that the call creates.</summary>
        internal void AddEmpty(int count)
        {
            for (int i = 0; i < count; ++i)
            {
                Grow();
                ++Count;
            }
        }

        /// <summary>Releases the values.</summary>
        internal void Clear()
        {
            for (int i = 0; i < Count; ++i)
            {
                owners[i]?.DangerousRelease();
                owners[i] = null;
                Array[i] = IntPtr.Zero;
            }
            Count = 0;
        }

        private void AddOne(OrtValueHandle handle)
        {
            Grow();
            bool added = false;
            handle.DangerousAddRef(ref added);
            owners[Count] = handle;
            Array[Count] = handle.DangerousGetHandle();
            ++Count;
        }

        private void Grow()
        {
            if (Count == owners.Length)
            {
                System.Array.Resize(ref owners, Count * 2);
                IntPtr[] larger = Array;
                System.Array.Resize(ref larger, Count * 2);
                Array = larger;
            }
        }

        private static ArgumentNullException Missing(string name, int index)
        {
            return new ArgumentNullException(name + "[" + index + "]");
        }
    }
}
