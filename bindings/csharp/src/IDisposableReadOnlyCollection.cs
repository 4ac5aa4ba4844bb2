using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A list of objects to dispose of. Disposing of the list disposes of every one.</summary>
    /// <typeparam name="T">Type of the objects.</typeparam>
    public interface IDisposableReadOnlyCollection<T> : IReadOnlyList<T>, IDisposable
    {
    }
}
