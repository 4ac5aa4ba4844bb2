using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The list that steps return.</summary>
    internal sealed class DisposableList<T> : List<T>, IDisposableReadOnlyCollection<T>
        where T : IDisposable
    {
        internal DisposableList(int capacity)
            : base(capacity)
        {
        }

        public void Dispose()
        {
            foreach (T item in this)
            {
                item?.Dispose();
            }
        }
    }
}
