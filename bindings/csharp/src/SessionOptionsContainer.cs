using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Configurations of session options by name, registered once in a program.</summary>
    public static class SessionOptionsContainer
    {
        private static readonly object Gate = new object();
        private static readonly Dictionary<string, Action<SessionOptions>> Handlers =
            new Dictionary<string, Action<SessionOptions>>();

        private static Action<SessionOptions> defaultHandler;

        /// <summary>Registers the configuration that has no name.</summary>
        /// <param name="defaultHandler">Sets the options.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="defaultHandler"/> is null.</exception>
        public static void Register(Action<SessionOptions> defaultHandler)
        {
            Arguments.NotNull(defaultHandler, nameof(defaultHandler));
            lock (Gate)
            {
                SessionOptionsContainer.defaultHandler = defaultHandler;
            }
        }

        /// <summary>Registers a configuration.</summary>
        /// <param name="configuration">The name. A configuration that is registered under this name is
        /// replaced.</param>
        /// <param name="handler">Sets the options.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        public static void Register(string configuration, Action<SessionOptions> handler)
        {
            Arguments.NotNull(configuration, nameof(configuration));
            Arguments.NotNull(handler, nameof(handler));
            lock (Gate)
            {
                Handlers[configuration] = handler;
            }
        }

        /// <summary>Creates options with a configuration.</summary>
        /// <param name="configuration">Its name; null for the default configuration.</param>
        /// <param name="useDefaultAsFallback">Whether the default configuration, or none if there is no default,
        /// is used when the name is not registered.</param>
        /// <returns>New options.</returns>
        /// <exception cref="System.Collections.Generic.KeyNotFoundException">When the name is not registered and
        /// the default is not used.</exception>
        public static SessionOptions Create(string configuration = null, bool useDefaultAsFallback = true)
        {
            var options = new SessionOptions();
            try
            {
                return ApplyConfiguration(options, configuration, useDefaultAsFallback);
            }
            catch
            {
                options.Dispose();
                throw;
            }
        }

        /// <summary>Applies a configuration to options.</summary>
        /// <param name="options">The options.</param>
        /// <param name="configuration">Its name; null for the default configuration.</param>
        /// <param name="useDefaultAsFallback">Whether the default configuration, or none if there is no default,
        /// is used when the name is not registered.</param>
        /// <returns>The options themselves.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="options"/> is null.</exception>
        /// <exception cref="System.Collections.Generic.KeyNotFoundException">When the name is not registered and
        /// the default is not used.</exception>
        public static SessionOptions ApplyConfiguration(
            this SessionOptions options, string configuration = null, bool useDefaultAsFallback = true)
        {
            Arguments.NotNull(options, nameof(options));
            Action<SessionOptions> handler = null;
            lock (Gate)
            {
                bool found = !string.IsNullOrEmpty(configuration) && Handlers.TryGetValue(configuration, out handler);
                if (!found)
                {
                    if (!string.IsNullOrEmpty(configuration) && !useDefaultAsFallback)
                    {
                        throw new KeyNotFoundException(
                            "there is no configuration '" + configuration + "', expected one of " +
                            (Handlers.Count == 0 ? "none" : string.Join(", ", Handlers.Keys)));
                    }
                    handler = defaultHandler;
                }
            }
            handler?.Invoke(options);
            return options;
        }

        /// <summary>Forgets all configurations.</summary>
        public static void Reset()
        {
            lock (Gate)
            {
                Handlers.Clear();
                defaultHandler = null;
            }
        }
    }
}
